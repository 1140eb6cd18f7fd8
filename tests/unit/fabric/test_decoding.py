"""Whose fault it is, over whole fabrics: the right part, at the right level, and nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from preflight.fabric.decoding.find import find
from tests.cases import draws
from tests.unit.fabric.fabrics import Made


def named(made: Made) -> list[tuple[str, str]]:
    """Symptom and name of everything that is found, sets joined by `|`."""
    found = find(made.observed()).culprits
    return sorted((one.symptom, " | ".join(part.name for part in one.among)) for one in found)


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 17, 64])
@pytest.mark.parametrize("rails", [1, 8])
def test_a_healthy_fabric_blames_no_part(nodes: int, rails: int) -> None:
    """Scatter of two per cent is no fault at any size."""
    assert named(Made(nodes=nodes, rails=rails)) == []


def test_a_slow_node_is_named_and_its_partners_are_not() -> None:
    """All its pairs are slow, the others among themselves are not."""
    assert named(Made(nodes=4, slow=lambda a, b, _: "n3" in (a, b))) == [("slow", "n3")]


def test_three_slow_nodes_of_eight_are_all_named() -> None:
    """Most pairs touch one of them; the ten that do not are what a pair should be."""
    bad = {"n1", "n2", "n3"}
    for seed in range(6):
        made = Made(nodes=8, seed=seed, slow=lambda a, b, _: not bad.isdisjoint((a, b)))
        assert named(made) == [("slow", name) for name in sorted(bad)]


@pytest.mark.parametrize(
    ("backend", "size_bytes", "symptoms"),
    [("nccl", 1 << 20, []), ("nccl", 64 << 20, ["slow"]), ("gloo", 1 << 20, ["slow"])],
)
def test_bandwidth_is_judged_where_the_wire_decides(
    backend: str, size_bytes: int, symptoms: list[str]
) -> None:
    """With NCCL a host may slow 1 MiB down, so that size alone counts against no node."""
    seen = replace(Made(nodes=8).observed(), backend=backend)
    digests = [one for one in seen.digests if one.size_bytes == size_bytes]
    slower = [
        replace(one, best_us=one.best_us * 3, p50_us=one.p50_us * 3)
        if "n3" in (one.a, one.b)
        else one
        for one in digests
    ]
    found = find(replace(seen, digests=tuple(slower))).culprits
    assert [one.symptom for one in found] == symptoms


def test_fifteen_per_cent_on_one_rail_of_one_node() -> None:
    """An endpoint is named as such: seven rails of the node are fine."""
    made = Made(nodes=8, rails=8, factor=1.18, slow=lambda a, b, rail: rail == 5 and "n2" in (a, b))
    assert named(made) == [("slow", "n2 rail 5")]


def test_a_slow_path_blames_neither_end() -> None:
    """Both ends are fast with all others."""
    made = Made(nodes=8, rails=8, slow=lambda a, b, _: (a, b) == ("n2", "n5"))
    assert named(made) == [("slow", "n2-n5")]


def test_a_bad_leaf_is_one_fault_not_eight() -> None:
    """One rail of all nodes under a leaf: the switch, where a topology says that there is one."""
    leaves = {f"n{number}": f"leaf{(number - 1) // 8}" for number in range(1, 33)}

    def slow(a: str, b: str, rail: int) -> bool:
        return rail == 2 and "leaf1" in (leaves[a], leaves[b])

    made = Made(nodes=32, rails=4, leaves=leaves, slow=slow)
    assert named(made) == [("slow", "leaf1 rail 2")]
    assert len(named(replace_leaves(made))) == 8


def replace_leaves(made: Made) -> Made:
    """The same fabric without a source of topology."""
    return Made(nodes=made.nodes, rails=made.rails, slow=made.slow)


@pytest.mark.parametrize("one_sided", [False, True])
def test_spikes_are_the_endpoints_also_where_one_end_sees_them(one_sided: bool) -> None:  # noqa: FBT001
    """A loss in one direction shows at the end that waits for the packet; no gap explains it."""
    made = Made(rails=4, one_sided=one_sided, spiky=lambda a, b, rail: rail == 1 and "n6" in (a, b))
    assert named(made) == [("spikes", "n6 rail 1")]


@pytest.mark.parametrize("apart_s", [1.0, 0.011])
def test_spikes_in_close_succession_are_many(apart_s: float) -> None:
    """One in fifty of the smallest operations is a spike of 10 ms: 11 ms lie between two of them.

    Of two nodes nobody knows whose it is, but the pair's other rails are calm.
    """
    made = Made(nodes=2, rails=8, spikes=40, apart_s=apart_s, spiky=lambda _a, _b, r: r == 1)
    assert named(made) == [("spikes", "n1 rail 1 | n2 rail 1 | n1-n2 rail 1")]


def test_a_late_host_is_not_the_network() -> None:
    """Its own gaps explain why its partners waited."""
    assert named(Made(nodes=8, late="n4")) == [("late", "n4")]


def test_three_faults_at_once_each_at_its_level() -> None:
    """A slow endpoint, a spiking one and a slow path do not hide each other."""
    made = Made(
        nodes=16,
        rails=2,
        slow=lambda a, b, rail: (rail == 0 and "n3" in (a, b)) or (a, b) == ("n8", "n9"),
        spiky=lambda a, b, rail: rail == 1 and "n12" in (a, b),
    )
    assert named(made) == [("slow", "n3 rail 0"), ("slow", "n8-n9"), ("spikes", "n12 rail 1")]


def test_wrong_sums_are_fatal_even_now_and_then() -> None:
    """A GPU that corrupts half of its pairs is named; its good pairs do not clear it."""
    made = Made(
        nodes=8, failed=lambda a, b, _: a == "n2" or (b == "n2" and a < "n2"), state="corrupt"
    )
    assert named(made) == [("corrupt", "n2")]


def test_two_nodes_cannot_tell_the_side() -> None:
    """One pair that hung: either end, or what lies between."""
    (one,) = find(Made(nodes=2, failed=lambda *_: True).observed()).culprits
    assert {part.name for part in one.among} == {"n1", "n2", "n1-n2"}
    assert one.component is None


def test_a_firewall_between_two_only() -> None:
    """The path is named: both ends connect to everybody else."""
    made = Made(nodes=4, failed=lambda a, b, _: (a, b) == ("n2", "n3"), state="no_connect")
    assert named(made) == [("no_connect", "n2-n3")]


def test_a_path_that_was_measured_again_and_again_is_one_partner() -> None:
    """Three slow rounds of one pair do not outvote the two partners with which an end is fine."""
    made = Made(nodes=4, slow=lambda a, b, _: (a, b) == ("n2", "n3"), again=(("n2", "n3"),) * 2)
    assert named(made) == [("slow", "n2-n3")]


@pytest.mark.parametrize(("nodes", "per_leaf"), [(8, 4), (16, 8), (64, 16), (17, 8)])
def test_a_slow_leaf_is_named_although_most_far_pairs_touch_it(nodes: int, per_leaf: int) -> None:
    """Of two leaves a slow one slows all far pairs, of four every second: no yardstick for far."""
    leaves = {f"n{at + 1}": f"leaf{at // per_leaf}" for at in range(nodes)}

    def slow(a: str, b: str, _: int) -> bool:
        return "leaf1" in (leaves[a], leaves[b]) or ("n1" in (a, b) and nodes > 3 * per_leaf)

    found = named(Made(nodes=nodes, leaves=leaves, slow=slow, factor=3.0))
    assert found == [("slow", "leaf1")] + [("slow", "n1")] * (nodes > 3 * per_leaf)


def test_two_corrupting_gpus_under_one_leaf_are_not_the_leaf() -> None:
    """The other six nodes under it have right sums with everybody else."""
    leaves = {f"n{at + 1}": f"leaf{at // 8}" for at in range(32)}
    bad = {"n9", "n12"}
    made = Made(nodes=32, leaves=leaves, failed=lambda a, b, _: bool(bad & {a, b}), state="corrupt")
    assert named(made) == [("corrupt", "n12"), ("corrupt", "n9")]


def test_two_spiking_rails_are_not_the_node() -> None:
    """Six of its eight rails are clean: two cables."""
    made = Made(
        nodes=8, rails=8, spikes=2, spiky=lambda a, b, rail: rail in (1, 6) and "n3" in (a, b)
    )
    assert named(made) == [("spikes", "n3 rail 1"), ("spikes", "n3 rail 6")]


def test_two_late_hosts_do_not_make_each_other_look_usual() -> None:
    """With one event in each round, what each is held against has as many of the other's."""
    seen = Made(nodes=9, rails=2, late="n4", spikes=1).observed()
    other = Made(nodes=9, rails=2, late="n2", spikes=1).observed()
    both = [
        replace(one, standouts=one.standouts or two.standouts)
        for one, two in zip(seen.digests, other.digests, strict=True)
    ]
    found = find(replace(seen, digests=tuple(both))).culprits
    assert {(one.symptom, one.among[0].name) for one in found} == {("late", "n4"), ("late", "n2")}


def test_a_few_calm_pairs_are_no_yardstick_where_events_are_usual() -> None:
    """On shared hosts every pair has some; that six of 28 have fewer is luck, no leaf's fault."""
    leaves = {f"n{at + 1}": f"leaf{at // 4}" for at in range(8)}

    def calm(a: str, b: str) -> bool:
        return leaves[a] == leaves[b] == "leaf1"

    some = Made(nodes=8, leaves=leaves, spikes=14, spiky=lambda *_: True)
    seen = some.observed()
    thinned = [
        replace(one, standouts=one.standouts[: 5 if calm(one.a, one.b) else 14])
        for one in seen.digests
    ]
    assert find(replace(seen, backend="gloo", digests=tuple(thinned))).culprits == ()


def test_one_calm_pair_of_three_nodes_blames_no_part() -> None:
    """With three nodes and one rail there is a single pair to hold the other two against."""
    made = Made(nodes=3, spikes=12, spiky=lambda a, b, _: "n2" in (a, b))
    assert named(made) == []


def test_many_slow_nodes_are_one_cause() -> None:
    """Over a quarter of the nodes: reported once, after each was found."""
    bad = {"n1", "n5", "n9", "n11", "n13"}
    findings = find(Made(nodes=16, slow=lambda a, b, _: bool(bad & {a, b})).observed())
    assert findings.systemic == "5 of 16 nodes are blamed at once"


@given(st.integers(0, 2**16), st.integers(3, 12).filter(lambda nodes: nodes != 3))
@draws(25)
def test_the_order_of_samples_does_not_matter(seed: int, nodes: int) -> None:
    """Accounts arrive in any order; the verdict is the same."""
    made = Made(
        nodes=nodes, rails=2, seed=seed, slow=lambda a, b, rail: rail == 1 and "n2" in (a, b)
    )
    seen = made.observed()
    tried, digests = list(seen.tried), list(seen.digests)
    shuffle = random.Random(seed).shuffle  # noqa: S311  an order, no secret
    shuffle(tried)
    shuffle(digests)
    mixed = replace(seen, tried=tuple(tried), digests=tuple(digests))
    assert [one.among for one in find(mixed).culprits] == [one.among for one in find(seen).culprits]


def test_two_dead_rails_are_two_nodes() -> None:
    """Also where they met each other; their partners are fine."""
    made = Made(
        nodes=8,
        rails=8,
        failed=lambda a, b, rail: (rail == 2 and "n3" in (a, b)) or (rail == 6 and "n5" in (a, b)),
    )
    assert named(made) == [("hung", "n3"), ("hung", "n5")]


def test_a_dead_node_is_one_fault_on_all_rails() -> None:
    """Not eight endpoints."""
    assert named(Made(nodes=8, rails=8, failed=lambda a, b, _: "n3" in (a, b))) == [("hung", "n3")]
