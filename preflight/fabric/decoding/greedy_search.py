"""The fewest parts that explain what was observed, by a greedy search.

Independent tests per node blame the partners of a bad one (two wrong blames per run at 4 nodes in
simulation). Here each accepted part takes its effect out of the observations before the next.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from preflight.fabric.decoding.culprit import NODE_KINDS
from preflight.fabric.decoding.parts import Key, Parts, same_node

TIE = 3.0
"""Nats: explanations nearer than that (20 to 1) count as equal."""

_WIDER_TIE = 1.0

_SAME_SHARE = 0.5
"""A rival explains the same if most of its gain vanishes once the other is accepted."""

_RIVAL_NATS = 2 * TIE

_LEAST_OF_LEAF = 3
"""So many of a leaf's nodes must show a fault before it is the leaf's: two may both be bad."""

DOUBT, MOST_PARTS = 5.0, 8
"""Nats from which a part is worth a retest, and the most parts that are retested.

Further paths are retested only if they need no further round.
"""

_MOST_PATHS = MOST_PARTS // 2
"""Of those, paths with one round, which is no proof however bad it is."""

_MOST_FAULTS = 256
"""Most parts that one search names; a longer list would be useless."""


class Model(Protocol):
    """A model of good observations, and of what a fault does to them."""

    def fit(self, through: Sequence[int]) -> tuple[float, float]:
        """Return the strength of a part's fault with these observations, and its gain in nats."""

    def uncapped_gain(self, through: Sequence[int]) -> float:
        """Return the gain without the limit on what one round may prove, if the model has one."""
        return self.fit(through)[1]

    def accept(self, through: Sequence[int], strength: float) -> None:
        """Expect these observations to show the fault from now on."""

    def matters(self, strength: float, through: Sequence[int]) -> bool:
        """Whether a fault of that strength matters at all."""

    def fits_fault(self, rows: Sequence[int], strength: float, through: Sequence[int]) -> bool:
        """Whether some of a part's observations fit that fault better than no fault.

        `through`: all observations through the part; good values are taken from the others.
        """

    _excluded: frozenset[int] = frozenset()
    """Observations that are never part of what others are compared with."""

    def exclude(self, rows: Collection[int]) -> None:
        """Compare no others with these: several parts seem to be at fault at once."""
        self._excluded = frozenset(rows)


class Fault(NamedTuple):
    """One fault: the part, its observations, those that explain it as well, strength and gain."""

    key: Key
    through: list[int]
    """The observations that were made through it."""
    ties: tuple[Key, ...]
    strength: float
    gain: float
    margin: float
    """By how many nats the next explanation is worse."""


class SearchResult(NamedTuple):
    """The faults that a search names, and unproven suspects, the likeliest first."""

    accepted: list[Fault]
    doubted: list[Key]


def explain(
    parts: Parts, through: Mapping[Key, list[int]], model: Model, false_alarm: float
) -> SearchResult:
    """Name parts until no remaining suspect is beyond chance, given all that were tested.

    `through`: observations through each suspect. `false_alarm`: accepted probability that a good
    fabric has any part named; infinite if a good fabric shows nothing at all, so that every
    observation must have a cause.
    """
    if not through:
        return SearchResult([], [])
    # Every observation could have made its parts suspects, so all of them count as tested.
    tested = max(len(through), parts.tested)
    threshold = math.log(tested / false_alarm) if math.isfinite(false_alarm) else -math.inf
    return _Suspects(parts, through, model, threshold).explained()


class _Suspects:
    """All parts that something was observed through, and the model that weighs them."""

    def __init__(
        self, parts: Parts, through: Mapping[Key, list[int]], model: Model, threshold: float
    ) -> None:
        self._parts = parts
        self._through = through
        self._model = model
        self._threshold = threshold

    def explained(self) -> SearchResult:
        """Accept the likeliest part, take its effect out of the observations, and repeat.

        Once no part is beyond chance by itself, the doubted ones may be proven together; if they
        are not, the search ends.
        """
        queue = self._queue(self._through)
        accepted: list[Fault] = []
        proven_together_at = -1
        while queue and len(accepted) < _MOST_FAULTS:
            key, strength, gain = self._pop_likeliest(queue)
            if gain <= 0 or gain - self._parts.penalty(key) <= self._threshold:
                keys = [key, *(other for _, other in queue)]
                doubted = self._rank_alone(keys, lambda rows: self._model.fit(rows)[1])[:MOST_PARTS]
                if len(accepted) == proven_together_at or not self._prove_together(doubted):
                    paths = self._paths_of_one_round(keys)
                    return SearchResult(accepted, list(dict.fromkeys([*paths, *doubted])))
                proven_together_at, queue = len(accepted), self._queue(keys)
            elif self._model.matters(strength, self._through[key]) and self._wholly_bad(key):
                accepted.append(self._accept(key, strength, gain))
        return SearchResult(accepted, [])

    def _queue(self, keys: Iterable[Key]) -> list[tuple[float, Key]]:
        """Return a heap of the parts; each entry begins with the negative of the part's score."""
        fit, penalty = self._model.fit, self._parts.penalty
        queue = [(penalty(key) - fit(self._through[key])[1], key) for key in keys]
        heapq.heapify(queue)
        return queue

    def _pop_likeliest(self, queue: list[tuple[float, Key]]) -> tuple[Key, float, float]:
        """Take the part with the highest score; return it with its strength and gain.

        A score in the queue may be from before other parts were accepted, which lowers scores: so
        only the first one is computed again (lazy greedy, Minoux 1978).
        """
        while True:
            _, key = heapq.heappop(queue)
            strength, gain = self._model.fit(self._through[key])
            loss = self._parts.penalty(key) - gain
            if not queue or queue[0][0] >= loss:
                return key, strength, gain
            heapq.heappush(queue, (loss, key))

    def _accept(self, key: Key, strength: float, gain: float) -> Fault:
        """Take a part's effect out of the observations; the rivals that it explains are its ties.

        Gains are compared before and after: a rival of which little is left explained the same.
        """
        through = self._through
        rivals = self._rivals(key, gain)
        self._model.accept(through[key], strength)
        lags = {
            other: gain - before
            for other, before in rivals.items()
            if self._model.fit(through[other])[1] < _SAME_SHARE * before
        }
        tied = (other for other, lag in lags.items() if lag < self._tie_nats(key, other))
        margin = max(0.0, min(lags.values(), default=gain))
        return Fault(key, through[key], tuple(sorted(tied)), strength, gain, margin)

    def _prove_together(self, doubted: Sequence[Key]) -> bool:
        """Whether parts that distort each other's comparison are proven once all are left out.

        Each of two late hosts among eight makes the other look usual. All must then be proven.
        """
        chosen: list[Key] = []
        excluded: set[int] = set()
        for key in doubted:
            rows = self._through[key]
            chosen_before = any(same_node(key, other) for other in chosen)
            if not chosen_before and len(excluded.intersection(rows)) * 2 < len(rows):
                chosen.append(key)
                excluded.update(rows)
                if len(chosen) > 1:
                    self._model.exclude(excluded)
                    if all(map(self._proven, chosen)):
                        return True
        self._model.exclude(())
        return False

    def _proven(self, key: Key) -> bool:
        strength, gain = self._model.fit(self._through[key])
        beyond_chance = gain - self._parts.penalty(key) > self._threshold
        return beyond_chance and self._model.matters(strength, self._through[key])

    def _rank_alone(self, keys: Iterable[Key], gain: Callable[[Sequence[int]], float]) -> list[Key]:
        """Return the parts that would be proven as the only suspects, strongest first."""
        model, through = self._model, self._through
        ranked = sorted((self._parts.penalty(key) - gain(through[key]), key) for key in keys)
        return [
            key
            for loss, key in ranked
            if loss < -DOUBT and model.matters(model.fit(through[key])[0], through[key])
        ]

    def _paths_of_one_round(self, keys: Sequence[Key]) -> list[Key]:
        """Return paths that only the limit on one round's proof keeps from being suspects.

        Strongest first; of a path and its rails only the strongest.
        """
        pairs: dict[tuple[str, str], Key] = {}
        paths = (key for key in keys if key.kind == "path")
        for key in self._rank_alone(paths, self._model.uncapped_gain):
            pairs.setdefault((key.name, key.partner), key)
        return list(pairs.values())[:_MOST_PATHS]

    def _wholly_bad(self, key: Key) -> bool:
        """Whether a whole part is bad: most of its members show it, none alone most of it."""
        model, through = self._model, self._through
        members = self._parts.members(key)
        if not members:
            return True
        strength, gain = model.fit(through[key])
        own_rows, candidates = set(through[key]), members
        if key.kind == "leaf_rail":
            nodes = (rows for other, rows in through.items() if other.kind in NODE_KINDS)
            shared = [common for rows in nodes if len(common := own_rows.intersection(rows)) > 1]
            gains = (model.fit(sorted(rows))[1] for rows in shared)
            if max(gains, default=0.0) >= _SAME_SHARE * gain:
                return False
            candidates = [*members, *self._other_suspects(members)]
        overlaps = [
            (member, sorted(own_rows.intersection(through[member])))
            for member in candidates
            if member in through
        ]
        overlaps.sort(key=lambda overlap: -model.fit(overlap[1])[1] if overlap[1] else 0.0)
        showing = 0
        rows_left = own_rows
        for member, rows in overlaps:
            # What two of them share counts for the more likely one.
            unshared = [row for row in rows if row in rows_left]
            if unshared and model.fits_fault(unshared, strength, through[key]):
                showing += member in members
                rows_left = rows_left.difference(unshared)
        together = [row for row in own_rows if self._parts.on_all_rails(row)]
        if together and model.fits_fault(together, strength, through[key]):
            return True
        return showing * 2 > len(members) and (key.kind != "leaf_rail" or showing >= _LEAST_OF_LEAF)

    def _other_suspects(self, members: Sequence[Key]) -> list[Key]:
        """Return suspects of the members' kind that are no members.

        All nodes of a leaf may be slow with one bad node under another leaf.
        """
        kind = members[0].kind, members[0].rail
        inside = set(members)
        return [key for key in self._through if (key.kind, key.rail) == kind and key not in inside]

    def _tie_nats(self, key: Key, other: Key) -> float:
        """Return the nats within which both are equal; less for a part that is wider than `key`."""
        return _WIDER_TIE if set(self._through[key]) < set(self._through[other]) else TIE

    def _rivals(self, key: Key, gain: float) -> dict[Key, float]:
        """Return the parts that share observations with `key`, and the gain of each without it."""
        own_rows = set(self._through[key])
        rivals: dict[Key, float] = {}
        for other, rows in self._through.items():
            if other == key or own_rows.isdisjoint(rows) or same_node(key, other):
                continue
            gains = self._model.fit(rows)[1]
            rival = gains > gain - _RIVAL_NATS
            if gains > 0 and not (rival and not self._wholly_bad(other)):
                rivals[other] = gains
        return rivals
