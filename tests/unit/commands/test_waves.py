"""Waves: every node once a night, every two nodes together over the nights, leaves joined early."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.commands.nightly.choice import nights_for_all_pairs, plan_waves
from tests.cases import draws


def _names(count: int) -> list[str]:
    return [f"gpu{number:04}" for number in range(1, count + 1)]


def _together(night: tuple[tuple[str, ...], ...]) -> set[tuple[str, str]]:
    return {pair for wave in night for pair in combinations(wave, 2)}


@given(st.integers(0, 150), st.integers(2, 40), st.integers(0, 9), st.data())
def test_every_node_is_in_exactly_one_wave(
    count: int, most: int, leaves: int, data: st.DataObject
) -> None:
    """Whatever was done before, no node is left out, none is in two waves, no wave is too large."""
    nodes = _names(count)
    leaf = {name: f"leaf{at % leaves}" for at, name in enumerate(nodes)} if leaves else {}
    earlier = data.draw(st.lists(st.lists(st.lists(st.sampled_from(nodes)).map(tuple)).map(tuple),
                                 max_size=3)) if nodes else []  # fmt: skip
    waves = plan_waves(nodes, leaf, most, earlier)
    assert sorted(name for wave in waves for name in wave) == nodes
    assert all(0 < len(wave) <= most for wave in waves)
    assert len(waves) == (-(-count // (2 * (most // 2))) if count > most else bool(count))


@pytest.mark.slow
@given(st.integers(2, 60), st.integers(2, 16))
@draws(25)
def test_over_the_nights_every_two_nodes_share_a_wave(count: int, most: int) -> None:
    """With the same nodes idle every night, each pair was together after the expected nights."""
    nodes = _names(count)
    nights: list[tuple[tuple[str, ...], ...]] = []
    for _ in range(nights_for_all_pairs(count, most)):
        nights.insert(0, plan_waves(nodes, {}, most, nights))
    met = set().union(*map(_together, nights))
    assert met == set(combinations(nodes, 2))


def test_leaves_are_joined_before_pairs_are_completed() -> None:
    """Eight leaves of eight nodes, waves of eight: every two leaves met before all pairs did."""
    nodes = _names(64)
    leaf = {name: f"leaf{at // 8}" for at, name in enumerate(nodes)}
    nights: list[tuple[tuple[str, ...], ...]] = []
    for _ in range(9):
        nights.insert(0, plan_waves(nodes, leaf, 8, nights))
    joined = {tuple(sorted((leaf[a], leaf[b]))) for night in nights for a, b in _together(night)}
    assert len(joined) == 8 * 7 // 2 + 8
    assert nights_for_all_pairs(64, 8) == 15


def test_who_waited_longest_comes_first() -> None:
    """The waves that last night had no time for are tonight's first ones."""
    nodes = _names(12)
    (first, *_, last) = plan_waves(nodes, {}, 4)
    tonight = plan_waves(nodes, {}, 4, [(first,)])
    assert set(tonight[0]) & set(last)
    assert set(tonight[-1]) & set(first)
