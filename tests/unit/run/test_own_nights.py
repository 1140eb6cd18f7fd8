"""From six nights in a history to tonight's verdict on a GPU that has nobody beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.core.registry import Entry, Registry, load_folder, shipped_folder
from preflight.fabric.planner import plan
from preflight.facts.node import Reach
from preflight.fleet.model import Fleet, Host
from preflight.history.run_record import Cost
from preflight.run.expected_verdicts import Settings
from preflight.run.measured import Measured
from preflight.run.run import Run
from preflight.session.stored_run import HistorySession, open_history
from preflight.verdict import Outcome, Verdict
from tests.unit.burn.builders import UNKNOWN, burned
from tests.unit.facts.builders import facts, gpu

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.check import Tier
    from preflight.facts.burn import Burned

COST = Cost(round_s=2.0, other_s=25.0)
FLEET = Fleet(hosts=(Host(name="h1", address="h1"),), origin="a test")
NAMES = ("h1",)
GPU = gpu(0)
REGISTRY = Registry(load_folder(shipped_folder()))


def _run(history: HistorySession, tonight: Burned, tier: Tier = "deep") -> Run:
    """One night of the only node, which has one GPU of which nothing is expected."""
    planned = plan(NAMES, {}, extent="auto", seed=1, past=history.past, budget_s=60.0, cost=COST)
    run = Run(FLEET, REGISTRY, Settings(tier=tier), planned)
    run.judgement.advance(
        Measured(
            nonce="ab" * 16,
            reach={"h1": Reach("ssh")},
            facts={"h1": facts("h1", gpus=(GPU,), gpu_pairs=())},
            burned={"h1": tonight},
            planned=planned,
        )
    )
    return run


def _night(folder: Path, tonight: Burned, number: int, *, tier: Tier = "deep") -> Verdict:
    """What is said of its GEMM tonight; the night is remembered."""
    history = open_history(str(folder), folder, FLEET, tier)
    run = _run(history, tonight, tier)
    said = run.judgement.verdict("burn.gemm", NAMES)
    entry = Entry("burn.gemm", "h1", NAMES, said)
    assert history.remember(run, (entry,), 1_700_000_000.0 + number * 86400) == ""
    return said


HEALTHY = burned(gpus=1, model=UNKNOWN)
SLOW = burned({("gemm_tflops", 0): 0.7}, gpus=1, model=UNKNOWN)


@pytest.mark.slow
def test_a_gpu_alone_that_became_slow_is_found(tmp_path: Path) -> None:
    """Five nights say what it reaches; on the sixth a third of it is missing, and so it stays."""
    for number in range(5):
        assert _night(tmp_path, HEALTHY, number).outcome is not Outcome.FAIL
    assert _night(tmp_path, HEALTHY, 5).outcome is Outcome.OK
    bad = _night(tmp_path, SLOW, 6)
    assert bad.outcome is Outcome.FAIL
    assert "0.88 of its median in 6 earlier runs, no peers" in bad.sentence
    # Bad nights do not become what is usual.
    for number in range(7, 11):
        assert _night(tmp_path, SLOW, number).outcome is Outcome.FAIL
    assert _night(tmp_path, HEALTHY, 11).outcome is Outcome.OK


def test_nights_of_another_tier_say_nothing(tmp_path: Path) -> None:
    """A short load is faster than a long one on the same healthy GPU."""
    for number in range(6):
        _night(tmp_path, HEALTHY, number, tier="standard")
    assert _night(tmp_path, SLOW, 7).outcome is not Outcome.FAIL
