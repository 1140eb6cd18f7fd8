"""Rounds that know the leaf switches, so that a bad uplink shows after a few rounds, not a night.

First circle rounds inside of every leaf at once; then a circle over the *leaves*, in which
position i of one leaf meets position i + shift of the other. With L equal leaves, L - 1 rounds
across (L if L is odd) join every two leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.schedule.circle import number_of, round_of_seats, rounds_among, seats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.schedule.circle import Pairing


class LeafAware:
    """All pairs of a fleet in numbered rounds: first those inside leaves, then those across.

    Every pair is in exactly one round. Leaves may differ in size; a node without a partner in a
    round has a bye there. In numbers: `in_leaf` rounds inside, then `span * width + shift`.
    """

    def __init__(self, leaves: Sequence[Sequence[str]], place: Mapping[str, int]) -> None:
        """`place` is each node's place in the fleet: the earlier comes first in a pair."""
        self._leaves = tuple(tuple(members) for members in leaves)
        self._at = {
            name: (leaf, position)
            for leaf, members in enumerate(self._leaves)
            for position, name in enumerate(members)
        }
        self._place = place
        self._seats = seats(len(self._leaves))
        self._width = max(map(len, self._leaves))
        self.in_leaf = max(rounds_among(len(members)) for members in self._leaves)
        spans = range(rounds_among(len(self._leaves)))
        self.numbers: tuple[int, ...] = (
            *range(self.in_leaf),
            *(self._number(span, d) for span in spans for d in range(self._shifts(span))),
        )

    def pairs(self, number: int) -> tuple[Pairing, ...]:
        """Lay out one round."""
        met = self._inside(number) if number < self.in_leaf else self._across(number - self.in_leaf)
        return tuple(sorted((self._ordered(*pair) for pair in met), key=self._by_place))

    def holding(self, a: str, b: str) -> int:
        """Return the number of the one round that holds this pair; KeyError for a stranger."""
        (one, i), (other, j) = self._at[a], self._at[b]
        if one == other:
            return number_of(i, j, seats(len(self._leaves[one])))
        if self._smaller_first(one, other) != (one, other):
            one, other, i, j = other, one, j, i
        shift = (j - i) % len(self._leaves[other])
        return self._number(number_of(one, other, self._seats), shift)

    def span(self, number: int) -> int:
        """Tell which leaves a round joins: the same in rounds of one span; -1 inside of leaves."""
        return -1 if number < self.in_leaf else (number - self.in_leaf) // self._width

    def _number(self, span: int, shift: int) -> int:
        return self.in_leaf + span * self._width + shift

    def _met(self, span: int) -> list[tuple[int, int]]:
        """Which leaves meet, the smaller of two first; an odd one out has a bye."""
        met = round_of_seats(span, self._seats)
        return [self._smaller_first(a, b) for a, b in met if b < len(self._leaves)]

    def _smaller_first(self, one: int, other: int) -> tuple[int, int]:
        a, b = sorted((one, other), key=lambda leaf: (len(self._leaves[leaf]), leaf))
        return a, b

    def _shifts(self, span: int) -> int:
        return max(len(self._leaves[larger]) for _, larger in self._met(span))

    def _inside(self, number: int) -> list[Pairing]:
        return [
            (members[i], members[j])
            for members in self._leaves
            if number < rounds_among(len(members))
            for i, j in round_of_seats(number, seats(len(members)))
            if j < len(members)
        ]

    def _across(self, number: int) -> list[Pairing]:
        span, shift = divmod(number, self._width)
        met = [(self._leaves[a], self._leaves[b]) for a, b in self._met(span)]
        return [
            (name, larger[(i + shift) % len(larger)])
            for smaller, larger in met
            if shift < len(larger)
            for i, name in enumerate(smaller)
        ]

    def _ordered(self, one: str, other: str) -> Pairing:
        return (one, other) if self._place[one] < self._place[other] else (other, one)

    def _by_place(self, pair: Pairing) -> int:
        return self._place[pair[0]]
