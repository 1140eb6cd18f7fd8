"""Who is measured with whom: disjoint pairs per round, so that a round costs as much as a pair.

The circle method in closed form: any prefix of the rounds is a set of perfect matchings without a
repeated pair, so "eight rounds" and "all pairs" are one generator with a different stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

Pairing = tuple[str, str]
"""Two node names, the earlier in fleet order first."""

Rounds = tuple[tuple[Pairing, ...], ...]

# A node that is bad with each of k partners is wrongly suspected with probability (d/N)^k, d bad
# nodes among N: at 1 % bad, eight partners leave nothing to chance.
_ALL_PAIRS_UP_TO, _MANY = 16, 256
_ROUNDS_MANY, _ROUNDS_HUGE = 9, 8
_TWO = 2


class Repaired(Struct, frozen=True):
    """A schedule without the nodes that are down, and the pairs it did not hold before."""

    rounds: Rounds
    new: tuple[Pairing, ...]


def default_rounds(nodes: int) -> int:
    """How many rounds a fleet of that size gets unless the operator says otherwise."""
    everyone = nodes - 1 + nodes % 2
    if nodes <= _ALL_PAIRS_UP_TO:
        return everyone
    return _ROUNDS_MANY if nodes <= _MANY else _ROUNDS_HUGE


def circle_rounds(nodes: Sequence[str], limit: int | None = None) -> Rounds:
    """Pair the nodes, given in fleet order, in `limit` rounds (by default as many as is usual).

    An odd fleet gets a phantom: each node sits out one round. Fewer than two nodes: no rounds.
    """
    if len(nodes) < _TWO:
        return ()
    seats = len(nodes) + len(nodes) % 2
    wanted = default_rounds(len(nodes)) if limit is None else limit
    return tuple(
        tuple((nodes[a], nodes[b]) for a, b in _round(number, seats) if b < len(nodes))
        for number in range(max(0, min(wanted, seats - 1)))
    )


def _round(number: int, seats: int) -> list[tuple[int, int]]:
    """One round over an even number of seats: the last stays, the others sit on a circle."""
    circle = seats - 1
    pairs = [(number, circle)]
    for step in range(1, seats // 2):
        one, other = (number + step) % circle, (number - step) % circle
        pairs.append((min(one, other), max(one, other)))
    return sorted(pairs)


def repair(rounds: Rounds, nodes: Sequence[str], down: Collection[str]) -> Repaired:
    """Take the nodes that are down out of the rounds and pair those left alone with each other.

    `nodes` is the fleet in order. Only pairs that no round holds yet are made, so nothing is
    measured twice; who finds no such partner sits the round out.
    """
    known = {pair for around in rounds for pair in around}
    up = [name for name in nodes if name not in down]
    repaired: list[tuple[Pairing, ...]] = []
    new: list[Pairing] = []
    for around in rounds:
        kept = [pair for pair in around if pair[0] not in down and pair[1] not in down]
        if len(kept) < len(around):
            busy = {name for pair in kept for name in pair}
            made = _match([name for name in up if name not in busy], known)
            known.update(made)
            new += made
            kept += made
        repaired.append(tuple(kept))
    return Repaired(tuple(repaired), tuple(new))


def _match(alone: Sequence[str], known: Collection[Pairing]) -> list[Pairing]:
    """Pair names, in order, with the next that they have not been paired with."""
    made: list[Pairing] = []
    left = list(alone)
    while left:
        one = left.pop(0)
        other = next((name for name in left if (one, name) not in known), None)
        if other is not None:
            left.remove(other)
            made.append((one, other))
    return made
