"""Scoring is strict: what is named wrongly counts, and a doubt only where the samples leave one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from preflight.fabric.decoding.culprit import Component, Culprit, Symptom
from tests.cases import draws
from tests.simulate.faults import SYMPTOMS, Fault, endpoint, leaf_rail, node, path
from tests.simulate.mixture import RDMA, mixture
from tests.simulate.noise import drawn
from tests.simulate.rdma import Rdma
from tests.simulate.score import score
from tests.simulate.truth import Planted, truth
from tests.unit.simulate.builders import fabric

if TYPE_CHECKING:
    from collections.abc import Sequence

_CASES = given(seed=st.integers(0, 10_000), count=st.sampled_from([2, 3, 4, 8, 17]))
_FEW = draws(30)


def _found(*among: Component, symptom: Symptom = "slow") -> Culprit:
    return Culprit(among=among, symptom=symptom, confidence=0.9)


def _truth(seed: int, count: int) -> tuple[Planted, ...]:
    where = fabric(count, rails=4, per_leaf=4 if count >= 8 else 0)
    return truth(where, Rdma(), mixture(where, max(1, count // 4), RDMA, drawn(seed)))


def _perfect(planted: Sequence[Planted]) -> list[Culprit]:
    """Name what can be known, and the declared set where it cannot."""
    return [_found(*one.among, symptom=min(SYMPTOMS[one.fault.kind])) for one in planted]


def _slow(where: object, *parts: Component) -> tuple[Planted, ...]:
    faults = [Fault(component=part, kind="slow", speed=0.85) for part in parts]
    return truth(where, Rdma(), faults)  # type: ignore[arg-type]


@_FEW
@_CASES
def test_a_perfect_decoder_gets_everything(seed: int, count: int) -> None:
    """Named where it can be, the stated set where not: no fault lost, nobody wronged."""
    planted = _truth(seed, count)
    scored = score(planted, _perfect(planted), 4)
    assert not scored.wrong
    for one, fate in zip(planted, scored.fates, strict=True):
        assert fate == ("named" if one.detectable else "inside")


@_FEW
@_CASES
def test_a_blamed_neighbour_is_counted_as_wrong(seed: int, count: int) -> None:
    """A partner on the same rail is healthy, however near it is."""
    planted = _truth(seed, count)
    healthy = [
        endpoint(name, rail)
        for name in fabric(count, rails=4).nodes
        for rail in range(4)
        if all(name not in one.component.nodes for one in planted)
    ]
    for part in healthy[:8]:
        scored = score(planted, [*_perfect(planted), _found(part)], 4)
        assert [one.component for one in scored.wrong] == [part]


@_FEW
@_CASES
def test_a_silent_decoder_misses_what_is_detectable_and_wrongs_nobody(
    seed: int, count: int
) -> None:
    """Saying nothing is right only about what cannot be known."""
    planted = _truth(seed, count)
    scored = score(planted, [], 4)
    assert not scored.wrong
    assert [fate == "missed" for fate in scored.fates] == [one.detectable for one in planted]


def test_a_doubt_is_allowed_only_where_it_was_declared() -> None:
    """Two nodes: the set is right and naming the healthy side is wrong. Eight: the set is vague."""
    a, b = endpoint("n1", 0), endpoint("n2", 0)
    two, eight = _slow(fabric(2), a), _slow(fabric(8), a)
    assert score(two, [_found(a, b, path("n1", "n2", 0))], 2).fates == ("inside",)
    assert score(two, [_found(a, b, endpoint("n2", 1))], 2).fates == ("vague",)
    assert score(two, [_found(b)], 2).wrong
    assert score(two, [_found(a)], 2).fates == ("named",)
    assert score(eight, [_found(a, b)], 2).fates == ("vague",)
    assert score(eight, [_found(b, path("n2", "n3", 0))], 2).wrong


def test_the_wrong_level_is_not_named_and_not_a_healthy_part() -> None:
    """A node for one of its rails, rails for their node, endpoints for their leaf-rail."""
    where = fabric(8, per_leaf=4)
    rail = _slow(where, endpoint("n1", 0))
    assert score(rail, [_found(node("n1"))], 2) == score(rail, [_found(node("n1"))] * 2, 2)
    assert score(rail, [_found(node("n1"))], 2).fates == ("level",)
    assert score(rail, [_found(endpoint("n1", 1))], 2).wrong
    leaf = _slow(where, leaf_rail(where, "leaf1", 0))
    each = [_found(endpoint(name, 0)) for name in where.under("leaf1")]
    assert score(leaf, each, 2).fates == ("level",)
    assert not score(leaf, each, 2).wrong
    assert score(leaf, [_found(leaf_rail(where, "leaf2", 0))], 2).wrong
    assert score(rail, [_found(leaf_rail(where, "leaf1", 0))], 2).wrong
    lane = _slow(where, path("n1", "n2", 0))
    assert score(lane, [_found(path("n1", "n2"))], 2).fates == ("level",)
    assert score(lane, [_found(path("n1", "n3", 0))], 2).wrong
    assert score(lane, [_found(node("n1"))], 2).wrong


def test_the_right_part_for_the_wrong_reason_is_misread() -> None:
    """A slow rail that is called dead would be repaired in vain."""
    planted = _slow(fabric(8), endpoint("n1", 0))
    dead = _found(endpoint("n1", 0), symptom="hung")
    assert score(planted, [dead], 2).fates == ("misread",)
    assert score(planted, [dead, _found(endpoint("n1", 0))], 2).fates == ("named",)


def test_with_one_rail_a_node_and_its_endpoint_are_one_part() -> None:
    """Whatever a decoder calls it, also the path."""
    where = fabric(8, rails=1)
    planted = _slow(where, endpoint("n1", 0), path("n2", "n3"))
    found = [_found(node("n1")), _found(path("n2", "n3", 0))]
    assert score(planted, found, 1).fates == ("named", "named")
    assert not score(planted, found, 1).wrong


def test_a_leaf_with_one_node_is_that_nodes_endpoint() -> None:
    """Seventeen nodes under leaves of eight: nothing tells the last one from its leaf."""
    where = fabric(17, per_leaf=8)
    planted = _slow(where, endpoint("n17", 0))
    leaf = leaf_rail(where, "leaf3", 0)
    assert score(planted, [_found(leaf, endpoint("n17", 0))], 2).fates == ("named",)


def test_anything_said_of_a_healthy_fabric_is_wrong() -> None:
    """Also a set: it makes somebody look for nothing."""
    assert len(score((), [_found(node("n1"), node("n2"))], 2).wrong) == 1
