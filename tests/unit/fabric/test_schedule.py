"""Rounds are disjoint pairs, every pair comes once, and a node that is down leaves no hole."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.fabric.schedule import circle_rounds, default_rounds, repair

FLEETS = st.integers(0, 40).map(lambda n: [f"h{i}" for i in range(n)])


@given(FLEETS)
def test_all_rounds_hold_every_pair_once(nodes: list[str]) -> None:
    """Nothing is measured twice and nothing is forgotten, in odd fleets too."""
    pairs = [pair for around in circle_rounds(nodes, 1000) for pair in around]
    assert sorted(pairs) == sorted(combinations(nodes, 2))


@given(FLEETS, st.integers(0, 60))
def test_rounds_are_disjoint_and_any_prefix_is_a_schedule(nodes: list[str], limit: int) -> None:
    """In a round each node works once; fewer rounds are the first of more."""
    rounds = circle_rounds(nodes, limit)
    assert rounds == circle_rounds(nodes, 1000)[:limit]
    for around in rounds:
        busy = Counter(name for pair in around for name in pair)
        assert set(busy.values()) == {1}
        assert len(busy) >= len(nodes) - 1


@pytest.mark.parametrize(
    ("nodes", "rounds"),
    [(0, 0), (1, 0), (2, 1), (3, 3), (4, 3), (16, 15), (17, 9), (256, 9), (257, 8), (4096, 8)],
)
def test_large_fleets_get_a_few_rounds(nodes: int, rounds: int) -> None:
    """All pairs up to 16 nodes, then as many rounds as localise a bad endpoint."""
    assert len(circle_rounds([str(n) for n in range(nodes)])) == rounds
    assert nodes < 2 or default_rounds(nodes) == rounds


@given(FLEETS, st.integers(0, 12), st.sets(st.integers(0, 39)))
def test_repair_leaves_the_down_out_and_repeats_no_pair(
    nodes: list[str], limit: int, numbers: set[int]
) -> None:
    """Kept pairs stay where they were; new ones are new, disjoint, in order, and of nodes up."""
    down = {f"h{n}" for n in numbers}
    before = circle_rounds(nodes, limit)
    after = repair(before, nodes, down)
    pairs = [pair for around in after for pair in around]
    assert len(pairs) == len(set(pairs))
    assert not down & {name for pair in pairs for name in pair}
    assert all(nodes.index(a) < nodes.index(b) for a, b in pairs)
    for old, new in zip(before, after, strict=True):
        assert {pair for pair in old if not down & set(pair)} <= set(new)
        assert len({name for pair in new for name in pair}) == 2 * len(new)


def test_partners_of_the_down_are_measured_with_each_other() -> None:
    """One round of six nodes, two of them down: those left alone meet."""
    rounds = ((("a", "b"), ("c", "d"), ("e", "f")),)
    after = repair(rounds, list("abcdef"), {"b", "d"})
    assert after == ((("e", "f"), ("a", "c")),)
