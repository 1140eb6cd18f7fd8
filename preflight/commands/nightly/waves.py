"""Which nodes are judged together tonight, so that over the nights every two of them were.

The fleet is cut, leaf by leaf, into halves of waves; a wave is two halves. Halves meet as nodes do
in a schedule of pairs: on a circle, in which every two of them share a wave exactly once. Pure.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

from preflight.fabric.schedule import Circle
from preflight.fleet.nodeset import natural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Wave = tuple[str, ...]
"""Nodes that are judged together, in the order of the fleet."""

Night = tuple[Wave, ...]
"""The waves of one sweep."""

LEAST, MOST = 2, 4096
"""Nodes of a wave."""

MOST_LOOKED_AT = 64
"""Rounds of halves that are compared, and nights that are remembered."""


def plan_waves(
    nodes: Sequence[str], leaves: Mapping[str, str], most: int, earlier: Sequence[Night] = ()
) -> Night:
    """Put every node into one wave of at most `most` nodes; who waited longest comes first.

    `nodes` is the fleet in order; `earlier` are the waves of former nights, the latest first. Where
    the same nodes are there every night, every two of them have shared a wave after as many nights
    as there are halves less one (`nights_to_all`); of more than 64 halves, nearly all.
    """
    if not LEAST <= most <= MOST:
        raise ValueError(most)
    if len(nodes) <= most:
        return (tuple(nodes),) if nodes else ()
    place = {name: at for at, name in enumerate(nodes)}
    cut = _cut(nodes, leaves, _halves(len(nodes), most))
    past = _Past(earlier[:MOST_LOOKED_AT], leaves)
    chosen = max(_rounds(cut, earlier), key=past.news)
    waves = [tuple(sorted((*one, *other), key=place.__getitem__)) for one, other in chosen]
    return tuple(sorted(waves, key=lambda wave: (-past.waited(wave), place[wave[0]])))


def nights_to_all(nodes: int, most: int) -> int:
    """How many nights it takes until every two nodes of such a fleet have shared a wave."""
    return 1 if nodes <= most else _halves(nodes, most) - 1


def _halves(nodes: int, most: int) -> int:
    """An even number of halves, none of more than half a wave."""
    return 2 * -(-nodes // (2 * (most // 2)))


def _rounds(halves: Sequence[Wave], earlier: Sequence[Night]) -> Iterator[list[tuple[Wave, Wave]]]:
    """Ways to put the halves together, no two alike; of many, another sample every night."""
    circle = Circle([str(at) for at in range(len(halves))])
    numbers = list(circle.numbers)
    if len(numbers) > MOST_LOOKED_AT:
        shuffled = random.Random(repr(earlier[:1]))  # noqa: S311  an order that repeats, no secret
        numbers = shuffled.sample(numbers, MOST_LOOKED_AT)
    for number in numbers:
        yield [(halves[int(a)], halves[int(b)]) for a, b in circle.pairs(number)]


def _cut(nodes: Sequence[str], leaves: Mapping[str, str], count: int) -> list[Wave]:
    """Cut into parts of nearly one size, neighbours of one leaf together."""
    known = sorted({leaves[name] for name in nodes if name in leaves}, key=natural)
    rank = {leaf: at for at, leaf in enumerate(known)}
    row = sorted(nodes, key=lambda name: rank.get(leaves.get(name, ""), len(rank)))
    edges = [len(row) * at // count for at in range(count + 1)]
    return [tuple(row[a:b]) for a, b in pairwise(edges)]


class _Past:
    """What former nights have put together."""

    def __init__(self, earlier: Sequence[Night], leaves: Mapping[str, str]) -> None:
        self._wave_of = [
            {name: number for number, wave in enumerate(night) for name in wave}
            for night in earlier
        ]
        self._leaves = leaves
        self._joined = {
            pair for night in earlier for wave in night for pair in self._leaf_pairs(wave)
        }

    def news(self, halves: Sequence[tuple[Wave, Wave]]) -> tuple[int, int]:
        """How much a night would bring: leaves never joined, then how long ago its pairs met."""
        fresh = {pair for one, other in halves for pair in self._leaf_pairs((*one, *other))}
        # Who sits at the same place in both halves stands for all of them.
        ages = (
            self._since(a, b) for one, other in halves for a, b in zip(one, other, strict=False)
        )
        return len(fresh - self._joined), sum(ages)

    def waited(self, wave: Wave) -> float:
        """For how many nights its nodes were not looked at, on the average."""
        return sum(map(self._alone, wave)) / len(wave)

    def _since(self, a: str, b: str) -> int:
        """How many nights ago two nodes shared a wave; more than all that is known, if never."""
        for ago, wave_of in enumerate(self._wave_of):
            if a in wave_of and wave_of[a] == wave_of.get(b):
                return ago
        return len(self._wave_of) + 1

    def _alone(self, name: str) -> int:
        return next((at for at, known in enumerate(self._wave_of) if name in known),
                    len(self._wave_of) + 1)  # fmt: skip

    def _leaf_pairs(self, wave: Wave) -> Iterator[tuple[str, str]]:
        found = sorted({self._leaves[name] for name in wave if name in self._leaves})
        return ((a, b) for at, a in enumerate(found) for b in found[at + 1 :])
