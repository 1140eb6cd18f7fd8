"""A simulated fabric shows what was planted in it, where it was planted, and nothing else."""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from preflight.fabric.observed import Observed, observe
from tests.cases import draws
from tests.simulate.condense import observed
from tests.simulate.faults import Fault, endpoint, leaf_rail, node, path
from tests.simulate.iterations import sweep
from tests.simulate.mixture import RDMA, mixture
from tests.simulate.noise import drawn
from tests.unit.simulate.builders import fabric, rdma, recorded, scene

if TYPE_CHECKING:
    from preflight.fabric.observed import Digest
    from tests.simulate.noise import Noise

_SEEDS = st.integers(0, 10_000)
_FEW = draws(15)

Where = tuple[str, str, int, int, int]


def _by_place(seen: Observed) -> dict[Where, Digest]:
    return {(one.a, one.b, one.rail, one.round, one.size_bytes): one for one in seen.digests}


def _through(fault: Fault, where: Where) -> bool:
    return fault.hits(where[0], where[1], where[2])


@_FEW
@given(seed=_SEEDS, count=st.integers(2, 9), faults=st.integers(0, 3))
def test_the_same_seed_makes_the_same_fabric_bit_by_bit(seed: int, count: int, faults: int) -> None:
    """A finding with its seed is enough to see it again."""
    where = fabric(count, per_leaf=4)
    planted = mixture(where, faults, RDMA, drawn(seed))
    assert planted == mixture(where, faults, RDMA, drawn(seed))
    first = observed(scene(where, *planted, seed=seed))
    assert first == observed(scene(where, *planted, seed=seed))
    other = observed(scene(where, *planted, seed=seed + 1))
    assert not first.digests or first.digests != other.digests


@_FEW
@given(
    seed=_SEEDS,
    kind=st.sampled_from(["slow", "spikes", "late", "loss"]),
    rail=st.sampled_from([0, 1, None]),
    at_path=st.booleans(),
)
def test_a_fault_leaves_its_trace_on_its_own_part_alone(
    seed: int, kind: str, rail: int | None, *, at_path: bool
) -> None:
    """What does not go through the faulty part is, to the last bit, what it was without it."""
    where = fabric(6)
    part = node("n3") if rail is None else endpoint("n3", rail)
    if at_path and kind in ("slow", "spikes"):
        part = path("n2", "n5", rail)
    fault = Fault(
        component=part,
        kind=kind,  # type: ignore[arg-type]
        speed=0.5,
        per_operation=0.05,
        lasts_us=50_000.0,
    )
    healthy = _by_place(observed(scene(where, seed=seed)))
    faulty = _by_place(observed(scene(where, fault, seed=seed)))
    assert healthy.keys() == faulty.keys()
    for place, one in faulty.items():
        if not _through(fault, place):
            assert one == healthy[place]
        elif kind == "slow" and one.phase == "soak":
            assert one.p50_us > 1.8 * healthy[place].p50_us
        elif kind != "slow" and one.phase == "ladder":
            longest = max((max(two.first_us, two.second_us) for two in one.standouts), default=0)
            assert longest > 10_000
            assert isclose(one.p50_us, healthy[place].p50_us, rel_tol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [rdma(), recorded()], ids=["rdma", "recorded"])
@given(seed=_SEEDS)
@draws(4, phases=[Phase.generate])
def test_digests_at_scale_are_those_of_the_iterations(noise: Noise, seed: int) -> None:
    """The short way, for thousands of nodes, and the real code on every iteration agree."""
    where = fabric(5, per_leaf=3)
    faults = (
        Fault(component=endpoint("n1", 0), kind="spikes", per_operation=0.01, lasts_us=3e4),
        Fault(component=node("n2"), kind="late", per_operation=0.01, lasts_us=3e4),
        Fault(component=endpoint("n3", 1), kind="loss", per_operation=0.01, lasts_us=3e4),
        Fault(component=endpoint("n4", 1), kind="slow", speed=0.5),
        Fault(component=endpoint("n5", 0), kind="corrupt", per_operation=0.5),
        Fault(component=path("n4", "n5", 1), kind="dead"),
    )
    short = observed(scene(where, *faults, noise=noise, seed=seed))
    long = observe(sweep(scene(where, *faults, noise=noise, seed=seed)))
    assert [one.state for one in short.tried] == [one.state for one in long.tried]
    assert (short.backend, short.leaves) == (long.backend, long.leaves)
    assert set(short.nodes) == set(long.nodes)
    other = _by_place(long)
    assert _by_place(short).keys() == other.keys()
    for place, one in _by_place(short).items():
        its = other[place]
        clear = 1.2 * max(one.cut_us, its.cut_us)
        long_ones, its_own = (
            [two for two in some.standouts if max(two.first_us, two.second_us) > clear]
            for some in (one, its)
        )
        assert [two.operation for two in long_ones] == [two.operation for two in its_own]
        for mine, theirs in zip(long_ones, its_own, strict=True):
            assert abs(mine.at_s - theirs.at_s) < 1e-3
            assert isclose(mine.first_us, theirs.first_us)
            assert isclose(mine.second_gap_us, theirs.second_gap_us)
        for name in ("loaded_s", "p99_us", "p999_us", "most_us"):
            assert isclose(getattr(one, name), getattr(its, name), rel_tol=1e-9), name
        for name in ("p50_us", "cut_us"):
            assert isclose(getattr(one, name), getattr(its, name), rel_tol=0.2), name


def test_a_late_host_shows_in_its_own_gap_and_at_its_partners() -> None:
    """The network was fast: the shorter of both ends did not grow; all rails stalled at once."""
    fault = Fault(component=node("n2"), kind="late", per_operation=0.02, lasts_us=5e4)
    seen = observed(scene(fabric(4), fault))
    marks = {0: set[tuple[int, int]](), 1: set[tuple[int, int]]()}
    for one in seen.digests:
        for two in one.standouts:
            if max(two.first_gap_us, two.second_gap_us) < 1e4:
                continue
            at_a = one.a == "n2"
            own_gap, waited = (
                (two.first_gap_us, two.second_us) if at_a else (two.second_gap_us, two.first_us)
            )
            assert own_gap > 1e4
            assert waited > 1e4
            assert two.network_us < 1e4
            marks[one.rail].add((one.round, two.operation))
    assert marks[0] == marks[1] != set()


def test_a_loss_in_one_direction_is_one_sided_and_the_other_end_waits_next() -> None:
    """The receiver is late at operation i, its partner at i + 1, and no gap grows."""
    fault = Fault(
        component=endpoint("n1", 0), kind="loss", per_operation=0.01, lasts_us=5e4, incoming=True
    )
    seen = observed(scene(fabric(6), fault))
    followed = one_sided = 0
    for one in seen.digests:
        at = {two.operation: two for two in one.standouts if max(two.first_us, two.second_us) > 3e4}
        for number, two in at.items():
            own, other = (
                (two.first_us, two.second_us) if one.a == "n1" else (two.second_us, two.first_us)
            )
            if own > 2e4 > other:
                one_sided += 1
                after = at.get(number + 1)
                followed += after is not None and after.network_us < 2e4
            assert max(two.first_gap_us, two.second_gap_us) < 2e4
    assert one_sided > 5
    assert followed > 0.8 * one_sided


def test_no_two_rounds_of_a_small_fabric_have_the_same_noise() -> None:
    """Else a burst of one pair would look like a fault of the node that it shares with another."""
    seen = observed(scene(fabric(8, rails=1), noise=recorded()))
    sums = [one.loaded_s for one in seen.digests if one.size_bytes == 8]
    assert len(set(sums)) == len(sums)


def test_a_dead_or_corrupting_part_says_so_in_its_own_pairs() -> None:
    """A dead path has no samples; a corrupting GPU is seen by whoever is measured with it."""
    dead = Fault(component=path("n1", "n2"), kind="dead")
    corrupt = Fault(component=endpoint("n4", 1), kind="corrupt", per_operation=1.0)
    seen = observed(scene(fabric(4), dead, corrupt))
    for one in seen.tried:
        if {one.a, one.b} == {"n1", "n2"}:
            assert one.state in ("hung", "no_connect")
        elif "n4" in (one.a, one.b) and one.rail == 1:
            assert one.state == "corrupt"
            assert one.error
        else:
            assert one.state == "measured"
    assert all({one.a, one.b} != {"n1", "n2"} for one in seen.digests)


def test_a_bad_leaf_rail_slows_all_below_it_on_that_rail() -> None:
    """Pairs within the leaf and across it; the other rail and the other leaf are as before."""
    where = fabric(8, per_leaf=4)
    fault = Fault(component=leaf_rail(where, "leaf1", 1), kind="slow", speed=0.5)
    seen = observed(scene(where, fault))
    for one in seen.digests:
        if one.phase == "soak":
            below = one.rail == 1 and {one.a, one.b} & {"n1", "n2", "n3", "n4"}
            assert (one.p50_us > 2500) == bool(below)


def test_a_burst_of_a_healthy_host_reaches_several_rails_at_once() -> None:
    """What looks like several spikes is one event, within a few milliseconds."""
    from tests.simulate.noise import Pool, Rare, Unrest
    from tests.simulate.rdma import Rdma
    from tests.simulate.scene import Scene
    from tests.unit.simulate.builders import SHORT

    class Restless(Rdma):
        unrest = Unrest(host=Rare(3.0, 20_000, 0.1))

    noise = Restless(SHORT)
    seen = observed(Scene(fabric(8, rails=4), noise, (), 3, Pool(noise, 1, 8)))
    rails: dict[tuple[str, str, int], dict[int, float]] = {}
    for one in seen.digests:
        for two in one.standouts:
            rails.setdefault((one.a, one.b, one.round), {})[one.rail] = two.at_s
    together = [list(at.values()) for at in rails.values() if len(at) > 1]
    assert len(together) > len(rails) / 2
    assert sum(max(at) - min(at) < 0.05 for at in together) > 0.8 * len(together)
