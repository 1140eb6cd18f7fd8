"""What only the whole fabric's samples show, as the operator reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.checks.fabric.test_pairs import judge_allreduce
from preflight.fabric.judge import judge_sweep
from preflight.fabric.samples import End, Moved, Timing
from preflight.verdict import Outcome
from tests.unit.fabric.synthetic import hosts, sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preflight.fabric.phrases import Blame
    from preflight.fabric.samples import PairSamples, Sweep
    from preflight.fleet.model import Host

    Change = Callable[[PairSamples], PairSamples]

LONG = 2000


def _each(measured: Sweep, change: Change) -> Sweep:
    return replace(measured, pairs=tuple(map(change, measured.pairs)))


def _long(spiky: Callable[[PairSamples], bool]) -> Change:
    """2,000 operations of 8 B per pair, some of them 10 ms long at both ends."""

    def change(pair: PairSamples) -> PairSamples:
        times = [20.0] * LONG
        if spiky(pair):
            for place in range(100, LONG, 400):
                times[place] = 10_000.0
        gaps = (60_000.0,) * LONG

        def end(one: End | None) -> End | None:
            small = Timing(8, tuple(times), gaps)
            return one and replace(one, timings=(small, *one.timings[1:]), started_s=1e9)

        return replace(pair, first=end(pair.first), second=end(pair.second))

    return change


def test_a_loose_cable_is_flaky_with_counts_and_counters() -> None:
    """Five spikes of 10 ms per pair on one rail: the node, the rail, how often, and its port."""
    fleet = hosts(5)

    def spiky(pair: PairSamples) -> bool:
        return pair.rail == 1 and "h3" in (pair.a, pair.b)

    def confess(pair: PairSamples) -> PairSamples:
        moved = (Moved("mlx5_1/1 symbol_error", 12.0), Moved("Xid 74 0000:2b:00", 1.0))
        if not spiky(pair) or pair.first is None or pair.second is None:
            return pair
        at_first = pair.a == "h3"
        first = replace(pair.first, moved=moved if at_first else ())
        second = replace(pair.second, moved=() if at_first else moved)
        return replace(pair, first=first, second=second)

    measured = sweep(fleet, lambda *_: 46.0, backend="nccl", rails=2)
    decoded = judge_sweep(_each(_each(measured, _long(spiky)), confess), fleet)
    (blame,) = decoded.blames
    assert (blame.kind, blame.component) == ("endpoint", "h3")
    assert blame.sentence == (
        "20 of 8040 operations through rail 1 of h3 took up to 10 ms: 1 in 402, elsewhere none; "
        "counters moved there meanwhile: Xid 74 0000:2b:00 (a fatal NVLink error) +4, "
        "mlx5_1/1 symbol_error +48"
    )
    assert blame.advice.startswith("reseat or swap the cable of rail 1 of h3")
    assert _others(_each(_each(measured, _long(spiky)), confess), fleet).sentence == (
        "20 of 8040 operations through rail 1 of h3 took up to 10 ms: 1 in 402, elsewhere none; "
        "counters moved on h3 that are tied to no rail: mlx5_1/1 symbol_error, "
        "Xid 74 0000:2b:00 (a fatal NVLink error)"
    )
    verdicts = {names: judge_allreduce(pair) for names, pair in decoded.pairs.items()}
    flaky = {names for names, verdict in verdicts.items() if verdict.outcome is Outcome.FLAKY}
    assert flaky == {names for names in verdicts if "h3" in names}
    assert {verdicts[names].blame for names in flaky} == {"h3"}
    sentences = {verdicts[names].sentence for names in flaky}
    assert sentences == {blame.sentence}, "the count is given once"


def _others(measured: Sweep, fleet: Sequence[Host]) -> Blame:
    """Who is blamed where none of the counters that moved is tied to a rail."""

    def loosen(pair: PairSamples) -> PairSamples:
        ends = [
            replace(end, moved=tuple(replace(one, assigned=False) for one in end.moved))
            for end in (pair.first, pair.second)
            if end is not None
        ]
        return replace(pair, first=ends[0], second=ends[1])

    (blame,) = judge_sweep(_each(measured, loosen), fleet).blames
    return blame


def test_fifteen_per_cent_less_is_reported_with_its_rail_and_numbers() -> None:
    """No fixed share of the peers' median would see it."""
    fleet = hosts(5)
    measured = sweep(fleet, lambda *_: 46.0, backend="nccl", rails=2)
    slower = iter(sweep(fleet, lambda *_: 39.1, backend="nccl", rails=2).pairs)

    def slow(pair: PairSamples) -> PairSamples:
        other = next(slower)
        return other if pair.rail == 1 and "h2" in (pair.a, pair.b) else pair

    (blame,) = judge_sweep(_each(measured, slow), fleet).blames
    assert (blame.kind, blame.component) == ("endpoint", "h2")
    assert "39.1 GB/s at 64 MiB with h5, 15 % less than its peers' median 46 GB/s" in blame.sentence
    assert "rail 1 of h2 is slow with each of its 4 partners" in blame.sentence


def test_what_fails_outright_is_not_reported_twice() -> None:
    """A link that is dead slow is one blame, not a slow one and a statistical one."""
    fleet = hosts(5)
    measured = sweep(fleet, lambda a, b: 0.02 if "h4" in (a, b) else 0.8)
    assert [blame.component for blame in judge_sweep(measured, fleet).blames] == ["h4"]
