"""The arithmetic of the benchmark, and that it compares what it says it compares."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pytest

from preflight.core.registry import Registry, load_folder, shipped_folder
from preflight.fleet.model import Host
from preflight.fleet.sources import FleetRequest, resolve
from preflight.history import reading
from preflight.run.expected_verdicts import Settings
from preflight.run.measured import Measured
from preflight.run.run import Run
from preflight.verdict import Outcome
from tests.bench import infra, one_node, pairs, passive, synthetic, year
from tests.bench.overheard import Conversation
from tests.bench.ratio import (
    Band,
    Bound,
    Row,
    Spread,
    faster,
    in_turns,
    interval,
    ratio_of_medians,
    times,
)
from tests.bench.report import row_document, table

if TYPE_CHECKING:
    from collections.abc import Iterator
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


def test_an_interval_that_reaches_into_the_band_keeps_its_promise() -> None:
    """Equal within what was measured; one that ends before the band does not."""
    band = Band(0.95, 1.05)
    assert band.holds(Spread(0.93, 0.90, 0.96))
    assert band.holds(Spread(1.1, 0.9, 1.3))
    assert not band.holds(Spread(0.9, 0.86, 0.94))
    assert not band.holds(Spread(1.2, 1.06, 1.3))
    shown = msgspec.structs.replace(_SLOW, bound=band)
    assert "overlaps 0.95 to 1.05: missed" in table([shown])


def test_a_ratio_of_medians_has_the_interval_of_its_turns() -> None:
    """The same each time; narrow where turns agree, and wide where they do not."""
    theirs = [100.0 + turn for turn in range(15)]
    seen = ratio_of_medians([2 * one for one in theirs], theirs)
    assert (seen.median, seen.low, seen.high) == (2.0, 2.0, 2.0)
    noisy = ratio_of_medians([one * (0.5 + turn / 7) for turn, one in enumerate(theirs)], theirs)
    assert noisy.low < 1.2 < noisy.median < 1.8 < noisy.high
    assert noisy == ratio_of_medians(
        [one * (0.5 + turn / 7) for turn, one in enumerate(theirs)], theirs
    )


@pytest.mark.parametrize("shape", pairs.SHAPES)
def test_each_pair_is_launched_as_often_as_any_other(shape: pairs.Shape) -> None:
    """What stands for all launches is no lucky choice: in the end each pair had its own."""
    names = [f"h{number}" for number in range(shape.hosts)]
    batches = pairs.launched(names, shape)
    tried = Counter(pair for _ in range(shape.turns) for pair in next(batches))
    assert len(tried) == shape.pairs
    assert len(set(tried.values())) == 1


def test_testinfra_and_we_read_the_same_twelve_facts() -> None:
    """Each fact that testinfra is timed on is one that our answer holds."""
    assert list(infra.READ) == list(infra.HAVE)
    assert len(infra.READ) == 12


_NOT_THERE = {
    "env.ranks", "fabric.nvlink_domain", "ib.gid", "ib.switch", "launch.script",
    "software.nccl_plugin",
}  # fmt: skip
"""What synthetic nodes have none of: a second environment, NVLink between nodes, RoCE, a switch, a
script, a plugin."""

_NOBODY_TELLS = {
    "driver.survivor",
    "gpus.health.fabric_domain",
    "gpus.health.memory_temperature_c",
    "gpus.health.fan_pct",
    "gpus.health.repair_pending",
    "gpus.health.retired_pages",
    "gpus.health.uncorrected_seen",
    "gpus.health.unrepairable",
    "machine.cgroup.cpus",
    "machine.cgroup.memory_mib",
    "machine.cgroup.pids",
    "network.interfaces.ethernet",
    "network.interfaces.ethernet.mtu_wanted",
    "network.interfaces.ethernet.partner_mbits",
    "software.cuda_compat",
    "software.torch.hip",
    "switches",
}
"""What a healthy H100 node has none of, or what an H100 does not tell."""


def _told(value: object, path: str) -> Iterator[tuple[str, bool]]:
    """Every field under a value, and whether it says something."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _told(getattr(value, name), f"{path}.{name}" if path else name)
    elif isinstance(value, tuple) and value:
        for one in value:
            yield from _told(one, path)
    else:
        yield path, value is not None


def test_a_synthetic_node_tells_whatever_a_real_one_does() -> None:
    """A section that is missing is judged in no time, and the figure would flatter."""
    ((_, facts),) = synthetic.told(1)
    told = list(_told(facts, ""))
    said = {path for path, says in told if says}
    silent = {path for path, _ in told} - said
    hidden = {path for path in silent if not path.startswith("processes.")}
    assert hidden == _NOBODY_TELLS
    assert facts.kernel_log is not None
    assert facts.kernel_log.lines
    assert facts.gpudirect is not None
    assert facts.gpudirect.acs


def test_passive_checks_judge_a_fleet_from_its_documents(tmp_path: Path) -> None:
    """Every verdict of the stages reach and facts is reached, and none of another stage."""
    passive.write(tmp_path, 3)
    taken = passive.judged(tmp_path)
    assert taken.nodes == 3
    assert taken.verdicts > 3 * 50


def test_a_history_of_a_year_is_asked_as_people_ask(tmp_path: Path) -> None:
    """Each question has an answer in it, or its figure would flatter."""
    few = year.written(tmp_path, 50, 31)
    rows = {row.id: row for row in year.rows(few, runs=1)}
    assert set(rows) == {
        f"history.{what}" for what in ("node", "worst", "changes", "planner", "command", "size")
    }
    with reading(few.place) as history:
        past = history.node(few.names[25])
        assert past is not None
        assert len(past.trends) == 6 * 8 + 8 + 3 * 8 + 2 * 2
        assert {len(one.points) for one in past.trends} == {31}
        assert len(past.seats) == 8
        assert history.worst()
        assert history.changes(history.last_run()).before
        assert history.past(few.names, {}).runs == 31
        assert len(history.units(few.names[:2], "deep")) == 2 * (6 * 8 + 8 + 3 * 8 + 2 * 2)


def test_one_round_trip_brings_all_facts_of_a_node() -> None:
    """One command is started; all that it reads is sent before its first word is awaited."""
    here = Host(name="here", address="here", transport="local", python=(sys.executable,))
    said = one_node.probe(here).said
    assert (said.commands, said.round_trips) == (1, 1)
    assert said.sent > said.received > 0
    again = Conversation()
    for _ in range(2):
        again.spoke(1)
        again.spoke(1)
        again.heard(b"word")
    assert again == Conversation(sent=4, received=10, lines=2, round_trips=2)


def test_the_synthetic_fleet_is_judged_by_every_check_and_has_its_planted_faults(
    tmp_path: Path,
) -> None:
    """Nothing of it is skipped, else judging it would be faster than judging a real one."""
    (tmp_path / "fleet.toml").write_text(synthetic.inventory(260))
    measured = Measured.decode(synthetic.measured(260).encode())
    fleet = resolve(FleetRequest(inventory=str(tmp_path / "fleet.toml")))
    run = Run(fleet, Registry(load_folder(shipped_folder())), Settings())
    run.replay(measured, run.expected(), lambda *_: None)
    known = run.judgement.verdicts()
    failed = {key for key, verdict in known.items() if verdict.outcome is Outcome.FAIL}
    skipped = {key for key, verdict in known.items() if verdict.outcome is Outcome.NOT_RUN}
    assert {names for check, names in failed if check == "gpu.count"} == {("gpu0200",)}
    assert {check for check, _ in failed} == {"gpu.count", "fabric.allreduce"}
    assert all("gpu0250" in names for check, names in failed if check == "fabric.allreduce")
    here = {names for check, names in skipped if check not in _NOT_THERE}
    assert here == {("gpu0200",)}
    assert len(known) == len(run.expected())
