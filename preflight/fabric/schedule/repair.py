"""What to do with nodes that would stand idle: partners of those that are down, and byes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fabric.schedule.circle import Pairing, Rounds

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class Repaired(Struct, frozen=True):
    """A schedule without the nodes that are down, and the pairs it did not hold before."""

    rounds: Rounds
    new: tuple[Pairing, ...]


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


def fill(rounds: Rounds, nodes: Sequence[str]) -> Rounds:
    """Pair those with a bye in the same round, whoever sat out most before them first.

    Leaves of unequal size leave several; else the same node could sit out round after round.
    Only pairs that no round holds are made. Never makes a round longer than half of the nodes.
    """
    known = {pair for around in rounds for pair in around}
    place = {name: at for at, name in enumerate(nodes)}
    sat = dict.fromkeys(nodes, 0)
    filled: list[tuple[Pairing, ...]] = []
    for around in rounds:
        busy = {name for pair in around for name in pair}
        idle = sorted((name for name in nodes if name not in busy), key=lambda name: -sat[name])
        made = _match(idle, known, place) if len(idle) > 1 else []
        known.update(made)
        met = {name for pair in made for name in pair}
        for name in idle:
            sat[name] += name not in met
        filled.append((*around, *made))
    return tuple(filled)


def nobody_sits_out(rounds: Rounds, nodes: Sequence[str]) -> Rounds:
    """Add a round for those that no pair holds: of an odd fleet, one round alone leaves one out.

    They meet each other, and the last one somebody who was measured already.
    """
    met = {name for around in rounds for pair in around for name in pair}
    alone = [name for name in nodes if name not in met]
    if not alone or not met:
        return rounds
    place = {name: at for at, name in enumerate(nodes)}
    made = _match(alone, (), place)
    left = [name for name in alone if not any(name in pair for pair in made)]
    partner = next(name for name in nodes if name in met)
    made += [(a, b) for name in left for a, b in (sorted((name, partner), key=place.__getitem__),)]
    return (*rounds, tuple(made))


def _match(
    alone: Sequence[str], known: Collection[Pairing], place: dict[str, int] | None = None
) -> list[Pairing]:
    """Pair names, in order, with the next that they have not been paired with.

    `place` says who of a pair is named first; without it, whoever comes first.
    """
    made: list[Pairing] = []
    left = list(alone)
    while left:
        one = left.pop(0)
        for other in left:
            pair = (one, other)
            if place is not None and place[other] < place[one]:
                pair = (other, one)
            if pair not in known:
                left.remove(other)
                made.append(pair)
                break
    return made
