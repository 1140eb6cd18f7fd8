"""The arithmetic of the benchmark, and that it compares what it says it compares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from preflight.fleet.sources import Wish, resolve
from preflight.registry import Registry, load_folder, shipped_folder
from preflight.run import Run, Settings
from preflight.stages.measured import Measured
from preflight.stages.progress import Silent
from preflight.verdict import Outcome
from tests.bench import infra, synthetic
from tests.bench.ratio import Bound, Row, Spread, faster, in_turns, interval, times
from tests.bench.report import row_document, table

if TYPE_CHECKING:
    from pathlib import Path

_SLOW = Row(
    id="x",
    what="this / that",
    ours=Spread(3, 2, 4),
    theirs=Spread(1, 1, 1),
    unit="s",
    value=Spread(3, 2, 4),
    runs=5,
    bound=Bound("at most", 2),
)


def test_takes_turns_and_every_other_turn_backwards() -> None:
    """What drifts while it is measured hits both sides alike."""
    order: list[str] = []

    def work(name: str) -> int:
        order.append(name)
        return len(order)

    results = in_turns(3, lambda: work("a"), lambda: work("b"))
    assert "".join(order) == "abbaab"
    assert results == [[1, 4, 5], [2, 3, 6]]


def test_a_ratio_is_made_turn_by_turn() -> None:
    """A turn in which both sides were slowed down counts as any other."""
    assert times([2, 20, 3], [1, 10, 1]) == Spread(2, 2, 3)
    assert faster([1, 2], [4, 10]) == Spread(4.5, 4, 5)


def test_the_interval_of_a_median_lies_between_order_statistics() -> None:
    """Of ten values the second and the ninth bracket the median with 95 %, of three none do."""
    assert interval(range(1, 11)) == Spread(5.5, 2, 9)
    assert interval([3, 1, 2]) == Spread(2, 1, 3)


def test_a_missed_bound_is_shown_and_written() -> None:
    """A promise that does not hold is nowhere left out."""
    assert "at most 2: missed" in table([_SLOW])
    assert row_document(_SLOW)["met"] is False
    kept = msgspec.structs.replace(_SLOW, bound=Bound("at least", 3))
    assert "at least 3: met" in table([kept])


def test_testinfra_and_we_read_the_same_twelve_facts() -> None:
    """Each fact that testinfra is timed on is one that our answer holds."""
    assert list(infra.READ) == list(infra.HAVE)
    assert len(infra.READ) == 12


def test_the_synthetic_fleet_is_judged_by_every_check_and_has_its_planted_faults(
    tmp_path: Path,
) -> None:
    """Nothing of it is skipped, else judging it would be faster than judging a real one."""
    (tmp_path / "fleet.toml").write_text(synthetic.inventory(260))
    measured = Measured.decode(synthetic.measured(260).encode())
    fleet = resolve(Wish(inventory=str(tmp_path / "fleet.toml")))
    run = Run(fleet, Registry(load_folder(shipped_folder())), Settings(), Silent())
    run.replay(measured, run.expected(), lambda *_: None)
    known = run.judgement.known()
    failed = {key for key, verdict in known.items() if verdict.outcome is Outcome.FAIL}
    skipped = {key for key, verdict in known.items() if verdict.outcome is Outcome.NOT_RUN}
    assert {names for check, names in failed if check == "gpu.count"} == {("gpu0200",)}
    assert {check for check, _ in failed} == {"gpu.count", "fabric.allreduce"}
    assert all("gpu0250" in names for check, names in failed if check == "fabric.allreduce")
    assert {names for _, names in skipped} == {("gpu0200",)}
    assert len(known) == len(run.expected())
