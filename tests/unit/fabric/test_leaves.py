"""Rounds by leaf switch hold every pair once, for leaves of any size, and join leaves early."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight.fabric.schedule import Frame, circle, circle_rounds, fill, frame_of

SIZES = st.lists(st.integers(1, 7), min_size=2, max_size=7)


def fabric(sizes: list[int], seed: int = 0) -> tuple[list[str], dict[str, str]]:
    """Nodes of leaves of these sizes, listed in an order that knows nothing of leaves."""
    leaves = {f"n{leaf}-{i}": f"leaf{leaf}" for leaf, size in enumerate(sizes) for i in range(size)}
    names = list(leaves)
    Random(seed).shuffle(names)  # noqa: S311  an order, no secret
    return names, leaves


def _by_leaf(sizes: list[int], seed: int = 0) -> tuple[Frame, list[str], dict[str, str]]:
    names, leaves = fabric(sizes, seed)
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(leaves[name], []).append(name)
    frame = Frame(list(members.values()), names)
    return frame, names, leaves


def _by_leaves(frame: Frame) -> bool:
    return len(frame.numbers) > frame.in_leaf


@given(SIZES, st.integers(0, 100))
@settings(deadline=None)
def test_all_rounds_together_hold_every_pair_once(sizes: list[int], seed: int) -> None:
    """Whatever the sizes, odd ones too: rounds are matchings, no pair twice, none missing."""
    frame, names, leaves = _by_leaf(sizes, seed)
    seen: list[tuple[str, str]] = []
    for number in frame.numbers:
        pairs = frame.pairs(number)
        busy = [name for pair in pairs for name in pair]
        assert pairs
        assert len(set(busy)) == len(busy)
        inside = {leaves[a] == leaves[b] for a, b in pairs}
        assert inside == {number < frame.in_leaf}
        assert all(frame.round_of(a, b) == frame.round_of(b, a) == number for a, b in pairs)
        seen += pairs
    assert len(seen) == len(set(seen))
    assert set(seen) == set(combinations(names, 2))


@given(st.integers(2, 9), st.integers(1, 6))
@settings(deadline=None)
def test_equal_leaves_are_all_joined_by_as_few_rounds_as_can_be(leaves: int, size: int) -> None:
    """L - 1 rounds, one of each span, join every two leaves; an odd L takes one more."""
    frame, _, leaf_of = _by_leaf([size] * leaves)
    first = {frame.span(n): n for n in reversed(frame.numbers) if n >= frame.in_leaf}
    assert len(first) == leaves - 1 + leaves % 2
    joined = {
        frozenset(leaf_of[n] for n in pair) for n in first.values() for pair in frame.pairs(n)
    }
    assert len(joined) == leaves * (leaves - 1) // 2


@pytest.mark.parametrize("leaves", [2, 4, 8])
def test_equal_leaves_waste_no_round(leaves: int) -> None:
    """An even number of equal, even leaves: N - 1 rounds, no node ever has a bye."""
    frame, names, _ = _by_leaf([4] * leaves)
    assert len(frame.numbers) == len(names) - 1
    assert {len(frame.pairs(number)) for number in frame.numbers} == {len(names) // 2}


@given(st.integers(2, 40))
@settings(deadline=None)
def test_a_circle_finds_the_round_of_a_pair_again(count: int) -> None:
    """What `holding` says is where the pair is, whichever end is named first."""
    names = [f"h{n}" for n in range(count)]
    frame = circle(names)
    for number in frame.numbers:
        for a, b in frame.pairs(number):
            assert frame.round_of(a, b) == frame.round_of(b, a) == number


def test_rounds_follow_leaves_only_where_that_leads_to_all_pairs_soon() -> None:
    """No leaf, one leaf, one node per leaf, or one huge leaf among tiny ones: a plain circle."""
    for sizes in ([9], [1, 1, 1, 1], [100, 2, 2, 2, 2]):
        assert not _by_leaves(frame_of(*fabric(sizes)))
    names, leaves = fabric([8, 8, 8, 5])
    assert not _by_leaves(frame_of(names, {}))
    assert _by_leaves(frame_of(names, leaves))


def test_nodes_of_unknown_leaves_make_the_others_equal() -> None:
    """A few nodes that no file lists cost no round: they stand where a leaf has room."""
    names, leaves = fabric([4, 4, 3, 3])
    frame = frame_of([*names, "x", "y"], leaves)
    assert _by_leaves(frame)
    assert len(frame.numbers) == 15
    assert {len(frame.pairs(number)) for number in frame.numbers} == {8}
    assert not _by_leaves(frame_of(names, dict.fromkeys(names[:3], "leaf0")))


@given(SIZES, st.integers(1, 9), st.integers(0, 9))
@settings(deadline=None)
def test_who_has_a_bye_beside_others_meets_one_of_them(
    sizes: list[int], count: int, seed: int
) -> None:
    """Filling adds only new pairs of idle nodes; two who never met do not sit out together."""
    frame, names, _ = _by_leaf(sizes, seed)
    before = tuple(frame.pairs(number) for number in frame.numbers[:count])
    after = fill(before, names)
    pairs = [pair for around in after for pair in around]
    assert len(set(pairs)) == len(pairs)
    assert all(names.index(a) < names.index(b) for a, b in pairs)
    for old, new in zip(before, after, strict=True):
        busy = [name for pair in new for name in pair]
        assert len(set(busy)) == len(busy)
        assert new[: len(old)] == old
        idle = [name for name in names if name not in busy]
        assert all(pair in pairs for pair in combinations(idle, 2))


def test_the_odd_one_out_is_another_one_each_time() -> None:
    """Of 13 nodes one sits out each round of a full circle, each of them once."""
    names = [f"h{n}" for n in range(13)]
    out = [set(names) - {n for pair in around for n in pair} for around in circle_rounds(names)]
    assert sorted(name for one in out for name in one) == sorted(names)
