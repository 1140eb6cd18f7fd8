"""Which nodes a judged sweep leaves out: the node at fault, and never its good partners."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.check import subject
from preflight.checks.fabric.test_pairs import judge_allreduce
from preflight.core.registry import Entry
from preflight.fabric.judge import judge_sweep
from preflight.report.findings import findings
from preflight.report.ready import blame_row, readiness
from tests.unit.fabric.synthetic import blame, end, hosts, sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.fabric.judge import Decoded
    from preflight.fabric.samples import Backend, PairState, Sweep
    from preflight.report.findings import Finding
    from preflight.report.ready import Readiness

CHECK = "fabric.allreduce"
GBS, FAST_GBS = 0.8, 40.0
"""Of a healthy pair: over sockets, over a fabric."""


def _entries(decoded: Decoded) -> list[Entry]:
    return [
        Entry(CHECK, subject(ends), ends, judge_allreduce(pair))
        for ends, pair in decoded.pairs.items()
    ]


def _readiness(measured: Sweep, count: int) -> tuple[Readiness, tuple[Finding, ...]]:
    """Everything from samples to what is shown."""
    fleet = hosts(count)
    decoded = judge_sweep(measured, fleet)
    entries = _entries(decoded)
    ready = readiness([host.name for host in fleet], entries, strict=False)
    return ready, findings(entries, tuple(map(blame_row, decoded.blames)))


def _noisy(
    spread: float, seed: int, times: Callable[[str, str], float], healthy_gbs: float = GBS
) -> Callable[[str, str], float]:
    noise = random.Random(seed)  # noqa: S311  a fabric for tests, no secret
    return lambda a, b: healthy_gbs / times(a, b) * float(2.718 ** noise.gauss(0, spread))


def _slow_node(times: float) -> Callable[[str, str], float]:
    return lambda a, b: times if "h2" in (a, b) else 1.0


def _twice(measured: Sweep, a: str, b: str) -> Sweep:
    """The pair is measured again, in a round of its own, and shows the same."""
    number = len(measured.rounds)
    again = [replace(one, round=number) for one in measured.pairs if (one.a, one.b) == (a, b)]
    return replace(
        measured,
        rounds=(*measured.rounds, ((a, b),)),
        pairs=(*measured.pairs, *again),
        retested=number,
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("backend", "count", "spread", "times"),
    [
        *(("gloo", 8, 0.12, times) for times in (3.5, 4.0, 4.5, 5.0, 6.0)),
        *(("gloo", 4, 0.12, times) for times in (4.0, 5.0)),
        *(("nccl", 16, 0.01, times) for times in (1.5, 1.6, 1.67, 1.75)),
    ],
)
@pytest.mark.slow
def test_a_slow_node_near_the_limit_goes_alone(
    backend: Backend, count: int, spread: float, times: float, seed: int
) -> None:
    """Some of its pairs are below the limit and some are not: that is its fault, not its paths'."""
    speed = _noisy(spread, seed, _slow_node(times), FAST_GBS if backend == "nccl" else GBS)
    ready, found = _readiness(sweep(hosts(count), speed, backend=backend), count)
    assert ready.not_ready == ("h2",)
    assert ready.apart == ()
    assert [one.subjects for one in found] == [("h2",)]
    assert "both fine" not in found[0].sentence


def test_some_pairs_of_a_slow_node_beside_the_limit_are_no_paths() -> None:
    """By hand: two of its seven pairs are below a quarter of the median, five just above it."""
    below = {("h1", "h2"), ("h2", "h5")}

    def speed(a: str, b: str) -> float:
        return GBS / (4.2 if (a, b) in below else 3.8 if "h2" in (a, b) else 1.0)

    ready, found = _readiness(sweep(hosts(8), speed), 8)
    assert (ready.not_ready, ready.apart) == (("h2",), ())
    assert [one.subjects for one in found] == [("h2",)]


def test_a_path_far_worse_than_its_slow_end_is_reported_beside_it() -> None:
    """Ten times slower than what else goes through h2 is a second fault, and h1 stays ready."""

    def speed(a: str, b: str) -> float:
        return GBS / (40.0 if (a, b) == ("h1", "h2") else 3.0 if "h2" in (a, b) else 1.0)

    once = sweep(hosts(8), speed)
    assert _readiness(once, 8)[0].not_ready == ("h2",)
    ready, found = _readiness(_twice(once, "h1", "h2"), 8)
    assert ready.not_ready == ("h2",)
    assert {one.subjects for one in found} == {("h2",), ("pair h1-h2",)}
    (path,) = (one for one in found if one.subjects == ("pair h1-h2",))
    assert path.sentence.endswith("h1 is fine with others, h2 also has another fault")


@pytest.mark.parametrize("count", [4, 8, 16])
@pytest.mark.parametrize("state", ["corrupt", "hung", "no_connect"])
def test_one_bad_pair_takes_out_its_own_ends_at_most(count: int, state: PairState) -> None:
    """One wrong sum in a hundred pairs says nothing of the other nodes."""

    def speed(a: str, b: str) -> float | PairState:
        return state if (a, b) == ("h1", "h2") else GBS

    ready, found = _readiness(sweep(hosts(count), speed), count)
    assert len(found) == 1
    assert {"h1", "h2"}.issuperset(ready.not_ready)
    assert set(ready.not_ready) == {"h1", "h2"} or ready.apart == (("h1", "h2"),)


def test_a_node_whose_sums_are_wrong_now_and_then_goes_alone() -> None:
    """Three of its seven pairs show it: no partner is left out, and the clean pairs are fine."""
    wrong = {("h1", "h2"), ("h2", "h4"), ("h2", "h7")}

    def speed(a: str, b: str) -> float | PairState:
        return "corrupt" if (a, b) in wrong else GBS

    fleet = hosts(8)
    decoded = judge_sweep(sweep(fleet, speed), fleet)
    bad = {entry.nodes for entry in _entries(decoded) if entry.verdict.makes_not_ready}
    assert bad == wrong
    assert _readiness(sweep(fleet, speed), 8)[0].not_ready == ("h2",)


def test_wrong_sums_at_a_node_that_hangs_besides_blame_no_partner() -> None:
    """What is left of a node that is blamed anyway is its own, whichever symptom was first."""

    def speed(a: str, b: str) -> float | PairState:
        return ("corrupt" if a == "h1" else "hung") if "h2" in (a, b) else GBS

    assert _readiness(sweep(hosts(8), speed), 8)[0].not_ready == ("h2",)


def test_a_slow_path_on_one_rail_beside_a_slow_rail_of_its_end() -> None:
    """Rail 1 of h1 is slow, and rail 3 of h1-h2: only h1 is left out, and both are reported."""
    fleet = hosts(8)
    measured = sweep(fleet, lambda *_: FAST_GBS, backend="nccl", rails=4)
    pairs = []
    for one in measured.pairs:
        speed = FAST_GBS
        if one.rail == 1 and "h1" in (one.a, one.b):
            speed /= 1.3
        if one.rail == 3 and (one.a, one.b) == ("h1", "h2"):
            speed /= 1.5
        ends = [end(name, speed, backend="nccl") for name in (one.a, one.b)]
        pairs.append(replace(one, first=ends[0], second=ends[1]))
    once = replace(measured, pairs=tuple(pairs))
    assert _readiness(once, 8)[0].not_ready == ("h1",)
    doubted = judge_allreduce(judge_sweep(once, fleet).pairs["h1", "h2"])
    assert doubted.blame == "h1"
    assert "not measured again" in doubted.sentence
    ready, found = _readiness(_twice(once, "h1", "h2"), 8)
    assert ready.not_ready == ("h1",)
    assert {one.subjects for one in found} == {("h1",), ("pair h1-h2",)}
    (path,) = (one for one in found if one.subjects == ("pair h1-h2",))
    assert path.sentence.endswith(
        "rail 3 of h1-h2 is slow; on rail 3 h1 and h2 are both fine with others"
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_slow_path_keeps_two_apart_and_a_healthy_fabric_none(seed: int) -> None:
    """Neither leaves a node out."""

    def path(a: str, b: str) -> float:
        return 20.0 if (a, b) == ("h1", "h2") else 1.0

    ready, _ = _readiness(sweep(hosts(8), _noisy(0.12, seed, path)), 8)
    assert (ready.not_ready, ready.apart) == ((), (("h1", "h2"),))
    ready, found = _readiness(sweep(hosts(8), _noisy(0.12, seed, lambda *_: 1.0)), 8)
    assert (ready.not_ready, ready.apart, found) == ((), (), ())


def test_what_may_be_either_of_two_is_reported_once() -> None:
    """Two nodes, one rail at half of the others: not separated, and no second finding says so.

    The message names the rail, and where to look on both.
    """
    measured = sweep(hosts(2), lambda *_: FAST_GBS, backend="nccl", rails=8)
    slow = end("h1", FAST_GBS / 2, backend="nccl")
    ends = [replace(slow, node=name, net="NET/IB mlx5_5 GDRDMA") for name in ("h1", "h2")]
    pairs = [
        replace(one, first=ends[0], second=ends[1]) if one.rail == 5 else one
        for one in measured.pairs
    ]
    slowed = replace(measured, pairs=tuple(pairs))
    ready, found = _readiness(slowed, 2)
    assert ready.not_ready == ("h1", "h2")
    assert [one.subjects for one in found] == [("h1 or h2",)]
    (one,) = blame(slowed, hosts(2))
    assert one.rail == 5
    assert " between h1 and h2 on rail 5; " in one.sentence
    assert one.advice == (
        "check link rate, cable and error counters of mlx5_5 on h1 and mlx5_5 on h2 (rdma link "
        "show mlx5_5/1; perfquery -C mlx5_5); exclude both, or run again with a third node to tell "
        "which it is"
    )


def test_where_one_of_two_is_meant_a_third_that_was_with_them_stays() -> None:
    """h1 and h2 have no good pair: one of them is bad, and h3, which is fine with h4, is not."""

    def speed(a: str, b: str) -> float | PairState:
        return "hung" if (a, b) in {("h1", "h2"), ("h1", "h3")} else GBS

    fleet = hosts(4)
    measured = sweep(fleet, speed)
    few = {("h1", "h2"), ("h1", "h3"), ("h3", "h4")}
    kept = tuple(one for one in measured.pairs if (one.a, one.b) in few)
    ready, _ = _readiness(replace(measured, pairs=kept), 4)
    assert "h3" not in ready.not_ready
    assert "h1" in ready.not_ready
