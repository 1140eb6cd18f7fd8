"""`reach.*`: the step that failed is the finding; those behind it were not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.checks.reach.test_reach import STEPS, judge_step
from preflight.facts.node import Reach

if TYPE_CHECKING:
    from preflight.core.remote_command import Step


@pytest.mark.parametrize("failed", STEPS)
def test_a_failed_step_divides_the_way(failed: Step) -> None:
    """Its own words and advice are the transport's."""
    reach = Reach("paramiko", failed, "the host key changed", "ask who reinstalled it")
    outcomes = [judge_step(step, reach).outcome.value for step in STEPS]
    at = STEPS.index(failed)
    assert outcomes == ["ok"] * at + ["fail"] + ["not_run"] * (len(STEPS) - at - 1)
    verdict = judge_step(failed, reach)
    assert (verdict.sentence, verdict.advice) == ("the host key changed", "ask who reinstalled it")
    for step in STEPS[at + 1 :]:
        assert judge_step(step, reach).sentence == f"not reached: {failed} failed"


@pytest.mark.proves("reach.name", passes="a node that answers")
@pytest.mark.proves("reach.route", passes="a node that answers")
@pytest.mark.proves("reach.hostkey", passes="a node that answers")
@pytest.mark.proves("reach.login", passes="a node that answers")
@pytest.mark.proves("reach.python", passes="a node that answers")
@pytest.mark.proves("reach.answer", passes="a node that answers")
def test_a_whole_way_is_ok() -> None:
    """A node that answered passed every step."""
    assert {judge_step(step, Reach("paramiko")).outcome.value for step in STEPS} == {"ok"}


def test_the_end_of_our_own_time_is_no_fault_of_a_node() -> None:
    """A step that the budget cut off is still to be checked: neither a failure nor a pass."""
    reach = Reach("paramiko", "answer", "it had not ended", "look", 1.8, out_of_time=True)
    verdict = judge_step("answer", reach)
    assert (verdict.outcome.value, verdict.evidence["stopped"]) == ("not_run", True)
    assert verdict.sentence == (
        "the run's time was up before it had answered (1.8 s); "
        "give more: --preflight-budget=SECONDS"
    )


def test_this_machine_needs_no_login() -> None:
    """Locally the SSH steps do not exist, the Python and the probe's answer do."""
    outcomes = {step: judge_step(step, Reach("local")).outcome.value for step in STEPS}
    assert [step for step in STEPS if outcomes[step] == "not_run"] == list(STEPS[:4])
    assert judge_step("name", Reach("local")).sentence == "local: no login needed"
    broken = Reach("local", "python", "no python3", "install it")
    assert judge_step("python", broken).outcome.value == "fail"
