"""Who is measured with whom and when: numbered rounds of disjoint pairs, a round costs a pair.

"Eight rounds" and "all pairs" are one generator with a different stop, and a round is its number:
what earlier runs have measured is kept as a set of numbers, never as N² pairs.

First circle rounds inside of every leaf at once; then a circle over the *leaves*, in which
position i of one leaf meets position i + shift of the other. With L equal leaves, L - 1 rounds
across (L if L is odd) join every two leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.core.statistics import grouped
from preflight.fabric.measure import joint_state

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from preflight.fabric.samples import PairSamples, Sweep


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


def ordered(ends: Collection[str], place: Callable[[str], int]) -> Pairing:
    """Two nodes as a pair; `place`: each one's place in the fleet."""
    a, b = sorted(ends, key=place)
    return a, b


class Circle:
    """All pairs of a fleet in N - 1 rounds (N if N is odd: each node sits out once)."""

    in_leaf = 0
    """So many rounds, the first by number, join no two leaves: none are known here."""

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
        place = self._place.__getitem__
        return tuple(sorted((ordered(pair, place) for pair in met), key=lambda own: place(own[0])))

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


DETOUR = 1.5
"""Times the rounds of a circle that rounds by leaf may take to all pairs; three equal ones: 4/3."""


Frame = Circle | LeafAware
"""Disjoint rounds that together hold every pair of a fleet exactly once."""


def frame_of(nodes: Sequence[str], leaves: Mapping[str, str]) -> Frame:
    """Number the rounds of a fleet: by leaf where at least two are known, else on one circle.

    Nodes of which no leaf is known fill up the smallest ones. Where the leaves are so unequal that
    most nodes would wait for the largest, rounds do not follow them.
    """
    members = grouped((leaves[name], name) for name in nodes if name in leaves)
    if len(members) < _TWO:
        return Circle(nodes)
    for name in nodes:
        if name not in leaves:
            min(members.values(), key=len).append(name)
    if len(members) == len(nodes):
        return Circle(nodes)
    frame = LeafAware(list(members.values()), {name: at for at, name in enumerate(nodes)})
    return frame if len(frame.numbers) <= DETOUR * rounds_among(len(nodes)) else Circle(nodes)


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
    made += [ordered((name, partner), place.__getitem__) for name in left]
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


Turn = Literal["scheduled", "repair", "retest"]
"""Why a pair was measured in that round."""


def pairs_of(rounds: Rounds) -> frozenset[Pairing]:
    """Every pair that these rounds hold."""
    return frozenset(pair for around in rounds for pair in around)


def turn_of(pair: PairSamples, sweep: Sweep, scheduled: frozenset[Pairing]) -> Turn:
    """Tell retests by their round, repairs by not being scheduled."""
    if sweep.retested and pair.round >= sweep.retested:
        return "retest"
    return "scheduled" if pair.nodes in scheduled else "repair"


def unscheduled_pairs(sweep: Sweep, scheduled: Iterable[Pairing]) -> tuple[Pairing, ...]:
    """The pairs that had a turn though no scheduled round holds them, in the order of their turns.

    A repair that had no turn is owed a verdict as well; a retest that had none is not.
    """
    known = frozenset(scheduled)
    found = (
        pair.nodes
        for pair in sweep.pairs
        if pair.nodes not in known
        and (turn_of(pair, sweep, known) == "repair" or joint_state(pair) != "not_run")
    )
    return tuple(dict.fromkeys(found))


def count_by_turn(sweep: Sweep, scheduled: Iterable[Pairing]) -> dict[Turn, int]:
    """How many pairs were measured for which reason; one that was for two counts for both."""
    known = frozenset(scheduled)
    met: dict[Turn, set[Pairing]] = {"scheduled": set(), "repair": set(), "retest": set()}
    for pair in sweep.pairs:
        if joint_state(pair) != "not_run":
            met[turn_of(pair, sweep, known)].add(pair.nodes)
    return {turn: len(pairs) for turn, pairs in met.items()}
