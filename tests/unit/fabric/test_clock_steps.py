"""A clock that was set is noticed, reported, and excuses what failed while it was."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from preflight.fabric.agent_events import PairAccount, Ready
from preflight.fabric.collect import SweepAccounts, clock_lines
from preflight.fabric.roster import build_roster
from preflight.fabric.samples import PairState, Sweep
from preflight.fabric.schedule import circle_rounds
from preflight.fabric.sweep_plan import SweepPlan

NAMES = ("h1", "h2")
HUNG = PairAccount(
    round=0, rail=0, a="h1", b="h2", backend="gloo", state="hung", error="Timed out",
    started_s=1.0, setup_ms=2.0, timings=(),
)  # fmt: skip


def swept(first: PairAccount, second: PairAccount) -> Sweep:
    """What a sweep of two nodes comes to that say this."""
    plan = SweepPlan(nodes=NAMES, rounds=circle_rounds(NAMES))
    who = build_roster(plan, dict.fromkeys(NAMES, Ready("2.13.0", cuda=False, gpus=0)))
    collected = SweepAccounts(who)
    assert collected.add("h1", first)
    assert collected.add("h2", second)
    return Sweep(who.ladder, who.rounds, collected.pairs())


@pytest.mark.parametrize(
    ("state", "stepped_s", "kept"),
    [("hung", -300.0, "not_run"), ("hung", 0.0, "hung"), ("corrupt", -300.0, "corrupt")],
)
def test_what_failed_while_a_clock_was_set_proves_nothing(
    state: PairState, stepped_s: float, kept: str
) -> None:
    """A wait may end by the wall clock; sums do not go by any clock."""
    seen = replace(HUNG, state=state, stepped_s=stepped_s)
    (pair,) = swept(seen, HUNG).pairs
    assert pair.first is not None
    assert pair.first.state == kept
    assert ("the clock of h1 was set back by 300 s" in pair.first.error) == (kept == "not_run")


def test_each_clock_that_was_set_is_reported_once() -> None:
    """Who, in which direction, how much, that durations stand, and where to look."""
    (line,) = clock_lines(swept(replace(HUNG, state="corrupt", stepped_s=300.5), HUNG))
    assert line.startswith("the clock of h1 was set forward by 300.5 s during the sweep")
    assert "chronyc" in line
    (line,) = clock_lines(swept(replace(HUNG, state="corrupt", stepped_s=-3.556e7), HUNG))
    assert line.startswith("the clock of h1 was set back by 412 days during the sweep")
    (line,) = clock_lines(swept(replace(HUNG, state="corrupt", stepped_s=7200.0), HUNG))
    assert "forward by 2 hours" in line


def test_a_step_is_seen_once_and_an_even_clock_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dates go on evenly whatever sets the clock; only the next look reports the step."""
    from sweep import clocks  # the payload, as it is imported on a node

    steps, before, honest = clocks.Steps(), clocks.now_s(), time.time
    assert steps.step_s() == 0.0
    monkeypatch.setattr(time, "time", lambda: honest() - 300)
    assert steps.step_s() == -300.0
    assert steps.step_s() == 0.0
    assert 0 <= clocks.now_s() - before < 60
