"""A bad path accounts for what goes over it, and hides nothing else of the nodes at its ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.fabric.decoding.find import find
from tests.unit.fabric.fabrics import Made

if TYPE_CHECKING:
    from preflight.fabric.observed import Observed
    from preflight.fabric.samples import PairState


def named(seen: Observed) -> set[tuple[str, str]]:
    """Symptom and name of everything that is found, sets joined by `|`."""
    found = find(seen).culprits
    return {(one.symptom, " | ".join(part.name for part in one.among)) for one in found}


def slower(seen: Observed, name: str, factor: float) -> Observed:
    """The same, with all of one node's small messages slower."""
    digests = (
        replace(one, p50_us=one.p50_us * factor, best_us=one.best_us * factor)
        if name in (one.a, one.b) and one.size_bytes == 8
        else one
        for one in seen.digests
    )
    return replace(seen, digests=tuple(digests))


def n1_n2(a: str, b: str, rail: int) -> bool:
    """Between these two, on the first rail."""
    return (a, b) == ("n1", "n2") and rail == 0


@pytest.mark.parametrize("state", ["hung", "no_connect", "error"])
def test_a_failed_path_does_not_hide_that_its_node_is_slow(state: PairState) -> None:
    """That one pair was never measured: what the node shows, it shows with six others."""
    made = Made(failed=n1_n2, state=state, slow=lambda a, b, _: "n1" in (a, b))
    symptom = "broken" if state == "error" else state
    assert named(made.observed()) == {(symptom, "n1-n2"), ("slow", "n1")}


def test_a_path_without_a_connection_does_not_hide_its_nodes_spikes() -> None:
    """No number of spikes keeps a pair from connecting: two faults."""
    made = Made(failed=n1_n2, state="no_connect", spiky=lambda a, b, _: "n1" in (a, b))
    assert named(made.observed()) == {("no_connect", "n1-n2"), ("spikes", "n1")}


def test_a_path_without_a_connection_does_not_hide_its_late_host() -> None:
    """Nor does a late start."""
    made = Made(failed=n1_n2, state="no_connect", late="n1")
    assert named(made.observed()) == {("no_connect", "n1-n2"), ("late", "n1")}


def test_a_slow_path_does_not_hide_its_nodes_latency() -> None:
    """Slow with one partner by bandwidth, with all partners by latency."""
    made = Made(nodes=16, factor=1.6, slow=n1_n2)
    assert named(slower(made.observed(), "n1", 2.5)) == {("slow", "n1-n2"), ("latency", "n1")}


def test_a_hung_rail_of_a_path_does_not_hide_a_slow_endpoint() -> None:
    """The same rail of the same node: with its other partners it is slow."""
    made = Made(rails=4, failed=n1_n2, slow=lambda a, b, rail: rail == 0 and "n1" in (a, b))
    assert named(made.observed()) == {("hung", "n1-n2"), ("slow", "n1 rail 0")}


def test_one_slow_node_with_several_symptoms_is_one_finding() -> None:
    """Slow, with spikes and high latency: the node, and none of its paths."""
    made = Made(slow=lambda a, b, _: "n1" in (a, b), spiky=lambda a, b, _: "n1" in (a, b))
    assert named(slower(made.observed(), "n1", 2.5)) == {("slow", "n1")}


def test_a_slow_endpoint_accounts_for_its_nodes_latency() -> None:
    """A rail of a node and the node are one machine to open: one finding."""
    made = Made(rails=4, slow=lambda a, b, rail: rail == 1 and "n1" in (a, b))
    assert named(slower(made.observed(), "n1", 2.5)) == {("slow", "n1 rail 1")}


def test_one_path_with_several_symptoms_is_one_finding() -> None:
    """Slow and with spikes: the path, and neither end."""
    assert named(Made(slow=n1_n2, spiky=n1_n2).observed()) == {("slow", "n1-n2")}


def test_a_hung_node_does_not_hide_its_slow_leaf() -> None:
    """The other nodes under the leaf are slow without it; the leaf is one fault, not three."""
    leaves = {f"n{at + 1}": f"leaf{at // 4}" for at in range(16)}
    made = Made(
        nodes=16,
        leaves=leaves,
        factor=2.0,
        failed=lambda a, b, _: "n1" in (a, b),
        slow=lambda a, b, _: "leaf0" in (leaves[a], leaves[b]),
    )
    assert named(made.observed()) == {("hung", "n1"), ("slow", "leaf0")}


@pytest.mark.parametrize(
    ("per_leaf", "expected"), [(2, {"n3 rail 2", "n4 rail 2"}), (3, {"leaf1 rail 2"})]
)
def test_under_a_leaf_of_two_both_nodes_are_named(per_leaf: int, expected: set[str]) -> None:
    """Two ports say less of a switch than of themselves; three are the leaf's."""
    leaves = {f"n{at + 1}": f"leaf{at // per_leaf}" for at in range(9)}
    made = Made(
        nodes=9,
        rails=4,
        leaves=leaves,
        slow=lambda a, b, rail: rail == 2 and "leaf1" in (leaves[a], leaves[b]),
    )
    assert named(made.observed()) == {("slow", name) for name in expected}
