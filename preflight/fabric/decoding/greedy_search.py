"""The fewest parts that explain what was observed, by a greedy search.

Independent tests per node blame the partners of a bad one (two wrong blames per run at 4 nodes in
simulation). Here each accepted part takes its effect out of the observations before the next.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from preflight.fabric.decoding.culprit import OF_A_NODE
from preflight.fabric.decoding.parts import Key, Parts, alike

TIE = 3.0
"""Nats: explanations nearer than that (20 to 1) count as equal."""

_WIDER = 1.0

_SAME = 0.5
"""A rival explains the same if most of its gain vanishes once the other is accepted."""

_RIVAL = 2 * TIE

_LEAF = 3
"""So many of a leaf's nodes must show a fault before it is the leaf's: two may both be bad."""

DOUBT, FEW = 5.0, 8
"""Nats from which a part is worth a retest, and how many parts are retested."""

_MOST_PATHS = FEW // 2
"""Of those, paths with one round, which is no proof however bad it is."""

_MOST = 256
"""Most parts that one search names; a longer list would be useless."""


class Model(Protocol):
    """A model of good observations, and of what a fault does to them."""

    def fit(self, through: Sequence[int]) -> tuple[float, float]:
        """Return the strength of a part's fault with these observations, and its gain in nats."""

    def hunch(self, through: Sequence[int]) -> float:
        """Return that gain if a single round were proof enough."""

    def accept(self, through: Sequence[int], strength: float) -> None:
        """Expect these observations to show the fault from now on."""

    def enough(self, strength: float, through: Sequence[int]) -> bool:
        """Whether a fault of that strength matters at all."""

    def shows(self, some: Sequence[int], strength: float, beside: Sequence[int]) -> bool:
        """Whether some of a part's observations fit that fault better than no fault.

        `beside`: all of the part's; good values are taken from the others.
        """

    _aside: frozenset[int] = frozenset()
    """With these no other observations are compared."""

    def leave_out(self, some: Collection[int]) -> None:
        """Stop comparing others with these: several parts seem to be at fault at once."""
        self._aside = frozenset(some)


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
        """Accept the likeliest, take its effect out of the observations, and go on."""
        model, through = self._model, self._through
        queue = self._queue(through)
        accepted: list[Fault] = []
        doubted: list[Key] = []
        tried_at = -1
        while queue and len(accepted) < _MOST:
            _, key = heapq.heappop(queue)
            strength, gain = model.fit(through[key])
            score = gain - self._parts.penalty(key)
            if queue and -queue[0][0] > score:
                heapq.heappush(queue, (-score, key))  # it was better before others were accepted
                continue
            if gain <= 0 or score <= self._threshold:
                keys = [key, *(other for _, other in queue)]
                doubted = self._if_alone(keys, lambda own: model.fit(own)[1])[:FEW]
                if len(accepted) > tried_at and self._several(doubted):
                    tried_at = len(accepted)
                    queue = self._queue(keys)
                    continue
                doubted = list(dict.fromkeys([*self._hot_once(keys), *doubted]))
                break
            if not model.enough(strength, through[key]) or not self._wholly_bad(key):
                continue
            near = self._near(key, gain)
            model.accept(through[key], strength)
            lags = {
                other: gain - before
                for other, before in near.items()
                if model.fit(through[other])[1] < _SAME * before
            }
            ties = tuple(sorted(o for o, lag in lags.items() if lag < self._tie(key, o)))
            margin = max(0.0, min(lags.values(), default=gain))
            accepted.append(Fault(key, through[key], ties, strength, gain, margin))
        return SearchResult(accepted, doubted)

    def _queue(self, keys: Iterable[Key]) -> list[tuple[float, Key]]:
        fit, penalty = self._model.fit, self._parts.penalty
        queue = [(penalty(key) - fit(self._through[key])[1], key) for key in keys]
        heapq.heapify(queue)
        return queue

    def _several(self, doubted: Sequence[Key]) -> bool:
        """Whether parts that distort each other's comparison are proven once all are left out.

        Each of two late hosts among eight makes the other look usual. All must then be proven.
        """
        chosen: list[Key] = []
        aside: set[int] = set()
        for key in doubted:
            own = self._through[key]
            same = any(alike(key, other) for other in chosen)
            if not same and len(aside.intersection(own)) * 2 < len(own):
                chosen.append(key)
                aside.update(own)
                if len(chosen) > 1:
                    self._model.leave_out(aside)
                    if all(map(self._proven, chosen)):
                        return True
        self._model.leave_out(())
        return False

    def _proven(self, key: Key) -> bool:
        strength, gain = self._model.fit(self._through[key])
        beyond_chance = gain - self._parts.penalty(key) > self._threshold
        return beyond_chance and self._model.enough(strength, self._through[key])

    def _if_alone(self, keys: Iterable[Key], gain: Callable[[Sequence[int]], float]) -> list[Key]:
        """Return those that would be proven if they were the only suspects, strongest first."""
        model, through = self._model, self._through
        ranked = sorted((self._parts.penalty(key) - gain(through[key]), key) for key in keys)
        return [
            key
            for loss, key in ranked
            if loss < -DOUBT and model.enough(model.fit(through[key])[0], through[key])
        ]

    def _hot_once(self, keys: Sequence[Key]) -> list[Key]:
        """Return paths that only the limit on one round's proof keeps from being suspects.

        Strongest first; of a path and its rails only the strongest.
        """
        pairs: dict[tuple[str, str], Key] = {}
        for key in self._if_alone((key for key in keys if key.kind == "path"), self._model.hunch):
            pairs.setdefault((key.one, key.other), key)
        return list(pairs.values())[:_MOST_PATHS]

    def _wholly_bad(self, key: Key) -> bool:
        """Whether a whole part is bad: most of its members show it, none alone most of it."""
        model, through = self._model, self._through
        members = self._parts.members(key)
        if not members:
            return True
        strength, gain = model.fit(through[key])
        own, sharing = set(through[key]), members
        if key.kind == "leaf_rail":
            nodes = (rows for other, rows in through.items() if other.kind in OF_A_NODE)
            shared = [common for rows in nodes if len(common := own.intersection(rows)) > 1]
            if max((model.fit(sorted(rows))[1] for rows in shared), default=0.0) >= _SAME * gain:
                return False
            sharing = [*members, *self._outside(members)]
        overlaps = [
            (member, sorted(own.intersection(through[member])))
            for member in sharing
            if member in through
        ]
        overlaps.sort(key=lambda two: -model.fit(two[1])[1] if two[1] else 0.0)
        hot = 0
        rows_left = own
        for member, rows in overlaps:
            # What two of them share counts for the more likely one.
            fresh = [number for number in rows if number in rows_left]
            if fresh and model.shows(fresh, strength, through[key]):
                hot += member in members
                rows_left = rows_left.difference(fresh)
        together = [number for number in own if self._parts.whole(number)]
        if together and model.shows(together, strength, through[key]):
            return True
        return hot * 2 > len(members) and (key.kind != "leaf_rail" or hot >= _LEAF)

    def _outside(self, members: Sequence[Key]) -> list[Key]:
        """Return other suspects of their kind: all of a leaf's nodes meet a bad node elsewhere."""
        like = members[0].kind, members[0].rail
        own = set(members)
        return [key for key in self._through if (key.kind, key.rail) == like and key not in own]

    def _tie(self, key: Key, other: Key) -> float:
        """Return the nats within which both are equal; a wider part, clean elsewhere, gets less."""
        return _WIDER if set(self._through[key]) < set(self._through[other]) else TIE

    def _near(self, key: Key, gain: float) -> dict[Key, float]:
        """Return parts that share observations with it, and the gain of each in its place."""
        own = set(self._through[key])
        near: dict[Key, float] = {}
        for other, rows in self._through.items():
            if other == key or own.isdisjoint(rows) or alike(key, other):
                continue
            gains = self._model.fit(rows)[1]
            rival = gains > gain - _RIVAL
            if gains > 0 and not (rival and not self._wholly_bad(other)):
                near[other] = gains
        return near
