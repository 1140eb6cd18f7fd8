"""The schedule: numbered rounds of disjoint pairs; a round takes as long as one pair.

"Eight rounds" and "all pairs" are the same sequence, cut at different lengths. A round is its
number: what earlier runs have measured is a set of numbers, never N² pairs.

First circle rounds inside all leaves at once; then a circle over the *leaves*, in which
position i of one leaf meets position i + shift of the other. With L equal leaves, L - 1 rounds
across (L if L is odd) join every two leaves.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.core.statistics import grouped
from preflight.fabric.pair_summary import joint_state

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from preflight.fabric.samples import PairSamples, Sweep


Pairing = tuple[str, str]
"""Two node names, the earlier in fleet order first."""

Rounds = tuple[tuple[Pairing, ...], ...]


class Planned(Struct, frozen=True, kw_only=True):
    """The rounds of one run, over *all* nodes of the fleet."""

    rounds: Rounds
    numbers: tuple[int, ...] = ()
    """The rounds' numbers in the fleet's frame; none if all pairs are measured."""
    total: int = 0
    """How many rounds together hold every pair."""
    seed: int = 0
    leaves: dict[str, str] = {}
    """Node name → its leaf switch, if known."""
    topology: str = ""
    """The source of `leaves`."""
    earlier: dict[str, tuple[float, ...]] = {}
    """What pairs of a small fleet, without peers, reached in earlier runs, GB/s (see `compare`)."""
    units: dict[str, tuple[float, ...]] = {}
    """What devices without peers reached in earlier runs (`preflight.burn.units`)."""


ALL_PAIRS_UP_TO = 16
"""Nodes up to which every run measures every pair."""

# A node that is bad with each of k partners is wrongly suspected with probability (d/N)^k, d bad
# nodes among N: at 1 % bad, eight partners leave nothing to chance.
_MANY = 256
_ROUNDS_MANY, _ROUNDS_HUGE = 9, 8


def ordered(ends: Collection[str], position_of: Callable[[str], int]) -> Pairing:
    """Return two nodes as a pair; `position_of`: the place of each in the fleet."""
    a, b = sorted(ends, key=position_of)
    return a, b


def default_rounds(nodes: int) -> int:
    """Return the default number of rounds of a fleet of that size."""
    if nodes <= ALL_PAIRS_UP_TO:
        return rounds_among(nodes)
    return _ROUNDS_MANY if nodes <= _MANY else _ROUNDS_HUGE


def circle_rounds(nodes: Sequence[str], limit: int | None = None) -> Rounds:
    """Pair the nodes, given in fleet order, in `limit` rounds (default: `default_rounds`).

    An odd fleet gets a phantom: each node sits out one round. Fewer than two nodes: no rounds.
    """
    frame = circle(nodes)
    count = default_rounds(len(nodes)) if limit is None else limit
    return tuple(frame.pairs(number) for number in frame.numbers[: max(0, count)])


def rounds_among(members: int) -> int:
    """Return how many rounds it takes until so many members have all met."""
    return positions(members) - 1 if members > 1 else 0


def positions(members: int) -> int:
    """Return an even number of positions; with odd members the last one is a phantom's."""
    return members + members % 2


def round_of_positions(number: int, positions: int) -> list[tuple[int, int]]:
    """Return one round over an even number of positions: the last is fixed, the others rotate."""
    circle = positions - 1
    pairs = [(number, circle)]
    for step in range(1, positions // 2):
        a, b = (number + step) % circle, (number - step) % circle
        pairs.append((min(a, b), max(a, b)))
    return sorted(pairs)


def round_of_pair(a: int, b: int, positions: int) -> int:
    """Return the round in which two positions meet: on the circle their sum is twice its number."""
    circle = positions - 1
    if circle in (a, b):
        return min(a, b)
    return (a + b) * (circle + 1) // 2 % circle


class Frame:
    """All pairs of a fleet in numbered rounds: first those inside leaves, then those across.

    Every pair is in exactly one round. Leaves may differ in size; a node without a partner in a
    round has a bye there. In numbers: `in_leaf` rounds inside, then `span * width + shift`.
    Without known leaves all nodes are in one: N - 1 rounds on a circle (N if N is odd).
    """

    def __init__(self, leaves: Sequence[Sequence[str]], nodes: Sequence[str]) -> None:
        """`nodes`: the fleet in order; the earlier node comes first in a pair."""
        self._leaves = tuple(tuple(members) for members in leaves)
        self._position = {
            name: (leaf, position)
            for leaf, members in enumerate(self._leaves)
            for position, name in enumerate(members)
        }
        self._order = {name: index for index, name in enumerate(nodes)}
        self._positions = positions(len(self._leaves))
        self._width = max(map(len, self._leaves))
        self.in_leaf = max(rounds_among(len(members)) for members in self._leaves)
        spans = range(rounds_among(len(self._leaves)))
        self.numbers: tuple[int, ...] = (
            *range(self.in_leaf),
            *(self._round_number(span, d) for span in spans for d in range(self._shifts(span))),
        )

    def pairs(self, number: int) -> tuple[Pairing, ...]:
        """Lay out one round."""
        inside = number < self.in_leaf
        pairs = self._inside(number) if inside else self._across(number - self.in_leaf)
        order = self._order.__getitem__
        in_order = (ordered(pair, order) for pair in pairs)
        return tuple(sorted(in_order, key=lambda pair: order(pair[0])))

    def round_of(self, a: str, b: str) -> int:
        """Return the number of the round that holds this pair; KeyError for an unknown node."""
        (leaf_i, i), (leaf_j, j) = self._position[a], self._position[b]
        if leaf_i == leaf_j:
            return round_of_pair(i, j, positions(len(self._leaves[leaf_i])))
        if self._smaller_first(leaf_i, leaf_j) != (leaf_i, leaf_j):
            leaf_i, leaf_j, i, j = leaf_j, leaf_i, j, i
        shift = (j - i) % len(self._leaves[leaf_j])
        return self._round_number(round_of_pair(leaf_i, leaf_j, self._positions), shift)

    def span(self, number: int) -> int:
        """Return which leaves a round joins: the same in rounds of one span; -1 inside leaves."""
        return -1 if number < self.in_leaf else (number - self.in_leaf) // self._width

    def _round_number(self, span: int, shift: int) -> int:
        return self.in_leaf + span * self._width + shift

    def _leaf_pairs(self, span: int) -> list[tuple[int, int]]:
        """Return the pairs of leaves of a span, the smaller leaf first; an odd one has a bye."""
        pairs = round_of_positions(span, self._positions)
        return [self._smaller_first(a, b) for a, b in pairs if b < len(self._leaves)]

    def _smaller_first(self, first: int, second: int) -> tuple[int, int]:
        a, b = sorted((first, second), key=lambda leaf: (len(self._leaves[leaf]), leaf))
        return a, b

    def _shifts(self, span: int) -> int:
        return max(len(self._leaves[larger]) for _, larger in self._leaf_pairs(span))

    def _inside(self, number: int) -> list[Pairing]:
        return [
            (members[i], members[j])
            for members in self._leaves
            if number < rounds_among(len(members))
            for i, j in round_of_positions(number, positions(len(members)))
            if j < len(members)
        ]

    def _across(self, number: int) -> list[Pairing]:
        span, shift = divmod(number, self._width)
        leaf_pairs = [(self._leaves[a], self._leaves[b]) for a, b in self._leaf_pairs(span)]
        return [
            (name, larger[(i + shift) % len(larger)])
            for smaller, larger in leaf_pairs
            if shift < len(larger)
            for i, name in enumerate(smaller)
        ]


MOST_DETOUR = 1.5
"""Rounds by leaf may need this multiple of a circle's rounds for all pairs; 3 equal leaves: 4/3."""


def circle(nodes: Sequence[str], order: Sequence[str] | None = None) -> Frame:
    """Number the rounds without leaves; `order`: the fleet's, if the nodes are in another."""
    return Frame([nodes], order or nodes)


def frame_of(nodes: Sequence[str], leaves: Mapping[str, str]) -> Frame:
    """Number the rounds of a fleet: by leaf if at least two are known, else on one circle.

    The numbers do not depend on the order of the nodes, which is the fleet's. Nodes without a known
    leaf fill up the smallest leaves. If the leaves are so unequal that most nodes would wait for
    the largest, one circle is used.
    """
    names = sorted(nodes)
    members = grouped((leaves[name], name) for name in names if name in leaves)
    one_circle = circle(names, nodes)
    if not 1 < len(members) < len(nodes):
        return one_circle
    for name in names:
        if name not in leaves:
            min(members.values(), key=len).append(name)
    frame = Frame(list(members.values()), nodes)
    return frame if len(frame.numbers) <= MOST_DETOUR * len(one_circle.numbers) else one_circle


def repair(rounds: Rounds, nodes: Sequence[str], down: Collection[str]) -> Rounds:
    """Remove the nodes that are down from the rounds, and pair their partners with each other.

    `nodes`: the fleet in order. Only new pairs are made, so nothing is measured twice; a node
    without such a partner has no pair in that round.
    """
    pairs = {pair for round_pairs in rounds for pair in round_pairs}
    place = {name: at for at, name in enumerate(nodes)}
    up = [name for name in nodes if name not in down]
    repaired: list[tuple[Pairing, ...]] = []
    for round_pairs in rounds:
        intact = [pair for pair in round_pairs if pair[0] not in down and pair[1] not in down]
        if len(intact) < len(round_pairs):
            busy = {name for pair in intact for name in pair}
            matches = _pair_up([name for name in up if name not in busy], pairs, place)
            pairs.update(matches)
            intact += matches
        repaired.append(tuple(intact))
    return tuple(repaired)


def fill(rounds: Rounds, nodes: Sequence[str]) -> Rounds:
    """Pair nodes that have a bye in the same round, those with most byes so far first.

    Leaves of unequal size leave several; else the same node could have a bye in every round. Only
    new pairs are made. A round never gets more pairs than half of the nodes.
    """
    pairs = {pair for round_pairs in rounds for pair in round_pairs}
    place = {name: at for at, name in enumerate(nodes)}
    byes = dict.fromkeys(nodes, 0)
    filled: list[tuple[Pairing, ...]] = []
    for round_pairs in rounds:
        busy = {name for pair in round_pairs for name in pair}
        idle = sorted((name for name in nodes if name not in busy), key=lambda name: -byes[name])
        matches = _pair_up(idle, pairs, place) if len(idle) > 1 else []
        pairs.update(matches)
        matched = {name for pair in matches for name in pair}
        for name in idle:
            byes[name] += name not in matched
        filled.append((*round_pairs, *matches))
    return tuple(filled)


def cover_unpaired(rounds: Rounds, nodes: Sequence[str]) -> Rounds:
    """Add a round for nodes without any pair: one round of an odd fleet leaves one out.

    They meet each other, and an odd last one meets a node that already has a pair.
    """
    paired = {name for round_pairs in rounds for pair in round_pairs for name in pair}
    unpaired = [name for name in nodes if name not in paired]
    if not unpaired or not paired:
        return rounds
    place = {name: at for at, name in enumerate(nodes)}
    matches = _pair_up(unpaired, (), place)
    unmatched = [name for name in unpaired if not any(name in pair for pair in matches)]
    partner = next(name for name in nodes if name in paired)
    matches += [ordered((name, partner), place.__getitem__) for name in unmatched]
    return (*rounds, tuple(matches))


def _pair_up(
    names: Sequence[str], pairs: Collection[Pairing], place: Mapping[str, int]
) -> list[Pairing]:
    """Pair each name, in order, with the next one that it has not been paired with."""
    matches: list[Pairing] = []
    waiting = list(names)
    while waiting:
        name = waiting.pop(0)
        for partner in waiting:
            pair = ordered((name, partner), place.__getitem__)
            if pair not in pairs:
                waiting.remove(partner)
                matches.append(pair)
                break
    return matches


RoundKind = Literal["scheduled", "repair", "retest"]
"""Why a pair was measured in that round."""


def pairs_of(rounds: Rounds) -> frozenset[Pairing]:
    """Return every pair of these rounds."""
    return frozenset(pair for round_pairs in rounds for pair in round_pairs)


def round_kind_of(pair: PairSamples, sweep: Sweep, scheduled: frozenset[Pairing]) -> RoundKind:
    """Return why a pair was measured: retests have later rounds, repairs were not scheduled."""
    if sweep.retested and pair.round >= sweep.retested:
        return "retest"
    return "scheduled" if pair.nodes in scheduled else "repair"


def unscheduled_pairs(sweep: Sweep, scheduled: frozenset[Pairing]) -> tuple[Pairing, ...]:
    """Return pairs of unscheduled rounds, in the order of their turns.

    A repair that was not measured needs a verdict as well; a retest that was not measured does not.
    """
    pairs = (
        pair.nodes
        for pair in sweep.pairs
        if pair.nodes not in scheduled
        and (round_kind_of(pair, sweep, scheduled) == "repair" or joint_state(pair) != "not_run")
    )
    return tuple(dict.fromkeys(pairs))


def count_by_round_kind(sweep: Sweep, scheduled: frozenset[Pairing]) -> Counter[RoundKind]:
    """Count the measured pairs by reason; a pair with two reasons counts for both."""
    measured = (pair for pair in sweep.pairs if joint_state(pair) != "not_run")
    kinds = {(round_kind_of(pair, sweep, scheduled), pair.nodes) for pair in measured}
    return Counter(kind for kind, _ in kinds)
