"""The circle method in closed form: any prefix of the rounds is matchings without a repeated pair.

"Eight rounds" and "all pairs" are one generator with a different stop, and a round is its number:
what earlier runs have measured is kept as a set of numbers, never as N² pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Pairing = tuple[str, str]
"""Two node names, the earlier in fleet order first."""

Rounds = tuple[tuple[Pairing, ...], ...]

ALL_PAIRS_UP_TO = 16
"""Nodes up to which every run measures every pair."""

# A node that is bad with each of k partners is wrongly suspected with probability (d/N)^k, d bad
# nodes among N: at 1 % bad, eight partners leave nothing to chance.
_MANY = 256
_ROUNDS_MANY, _ROUNDS_HUGE = 9, 8
_TWO = 2


class Circle:
    """All pairs of a fleet in N - 1 rounds (N if N is odd: each node sits out once)."""

    in_leaf = 0

    def __init__(self, nodes: Sequence[str]) -> None:
        self._nodes = tuple(nodes)
        self._seat = {name: seat for seat, name in enumerate(self._nodes)}
        self._seats = seats(len(self._nodes))
        self.numbers = range(rounds_among(len(self._nodes)))

    def pairs(self, number: int) -> tuple[Pairing, ...]:
        """Lay out one round; each pair in the order of the nodes given."""
        return tuple(
            (self._nodes[a], self._nodes[b])
            for a, b in round_of_seats(number, self._seats)
            if b < len(self._nodes)
        )

    def holding(self, a: str, b: str) -> int:
        """Return the number of the one round that holds this pair; KeyError for a stranger."""
        return number_of(self._seat[a], self._seat[b], self._seats)

    def span(self, number: int) -> int:
        """Tell which leaves a round joins: nothing is known of leaves here."""
        del number
        return 0


def default_rounds(nodes: int) -> int:
    """How many rounds a fleet of that size gets unless the operator says otherwise."""
    if nodes <= ALL_PAIRS_UP_TO:
        return rounds_among(nodes)
    return _ROUNDS_MANY if nodes <= _MANY else _ROUNDS_HUGE


def circle_rounds(nodes: Sequence[str], limit: int | None = None) -> Rounds:
    """Pair the nodes, given in fleet order, in `limit` rounds (by default as many as is usual).

    An odd fleet gets a phantom: each node sits out one round. Fewer than two nodes: no rounds.
    """
    circle = Circle(nodes)
    wanted = default_rounds(len(nodes)) if limit is None else limit
    return tuple(circle.pairs(number) for number in circle.numbers[: max(0, wanted)])


def rounds_among(members: int) -> int:
    """How many rounds it takes until each of so many has met each other."""
    return seats(members) - 1 if members >= _TWO else 0


def seats(members: int) -> int:
    """An even number of seats; the last one is a phantom's if the members are odd."""
    return members + members % 2


def round_of_seats(number: int, seats: int) -> list[tuple[int, int]]:
    """One round over an even number of seats: the last stays, the others sit on a circle."""
    circle = seats - 1
    pairs = [(number, circle)]
    for step in range(1, seats // 2):
        one, other = (number + step) % circle, (number - step) % circle
        pairs.append((min(one, other), max(one, other)))
    return sorted(pairs)


def number_of(one: int, other: int, seats: int) -> int:
    """The round in which two seats meet: those on the circle add up to twice its number."""
    circle = seats - 1
    if circle in (one, other):
        return min(one, other)
    return (one + other) * (circle + 1) // 2 % circle
