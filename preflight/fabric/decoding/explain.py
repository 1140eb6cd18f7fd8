"""The fewest parts that explain what was observed, by a greedy search.

Independent tests per node blame the partners of a bad one (two wrong blames per run at 4 nodes in
simulation). Here each accepted part takes its effect out of the observations before the next.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, NamedTuple, Protocol

from preflight.fabric.decoding.parts import alike

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from preflight.fabric.decoding.parts import Key, Parts


TIE = 3.0
"""Nats: explanations nearer than that (20 to 1) are not told apart."""

_WIDER = 1.0

_SAME = 0.5
"""A rival explains the same if most of its gain is gone once the other is accepted."""

_RIVAL = 2 * TIE

_LEAF = 3
"""So many of a leaf's nodes must show a fault before it is the leaf's: two may both be bad."""

DOUBT, FEW = 5.0, 8
"""Nats from which a part is worth a second look, and how many are looked at again."""

_MOST_PATHS = FEW // 2
"""Of those, paths whose one round is no proof, however much it shows."""

_MOST = 256
"""Parts at fault that one search names; more is no list of faults."""


class Model(Protocol):
    """What healthy observations look like, and what a fault does to them."""

    def fit(self, through: Sequence[int]) -> tuple[float, float]:
        """The strength of a fault of a part with these observations, and its gain in nats."""

    def hunch(self, through: Sequence[int]) -> float:
        """The gain of a fault of a part if a single round were proof enough."""

    def accept(self, through: Sequence[int], strength: float) -> None:
        """From now on these observations are expected to show it."""

    def enough(self, strength: float, through: Sequence[int]) -> bool:
        """Whether a fault of that strength matters at all."""

    def shows(self, some: Sequence[int], strength: float, beside: Sequence[int]) -> bool:
        """Whether some of a part's observations fit that fault better than none.

        `beside`: all of the part's; what healthy is like is taken from the others.
        """

    def leave_out(self, some: Collection[int]) -> None:
        """From now on these are no yardstick for others."""


class Accepted(NamedTuple):
    """One fault: the part, its observations, those that explain it as well, strength and gain."""

    key: Key
    through: list[int]
    """The observations that were made through it."""
    ties: tuple[Key, ...]
    strength: float
    gain: float
    margin: float
    """By how much the next explanation is worse, nats."""


class Explained(NamedTuple):
    """What a search names, and what it suspects without proof, the likeliest first."""

    accepted: list[Accepted]
    doubted: list[Key]


def explain(
    parts: Parts, through: Mapping[Key, list[int]], model: Model, false_alarm: float
) -> Explained:
    """Name parts until nothing is left that beats chance over all that were suspected.

    `false_alarm`: how probable it may be that a healthy fabric has any part named; infinite where
    no healthy fabric shows anything, and all that was seen must have a cause.
    """
    if not through:
        return Explained([], [])
    # Every observation had the chance to make its parts suspects, so all of those were tested.
    tested = max(len(through), parts.tested)
    threshold = math.log(tested / false_alarm) if math.isfinite(false_alarm) else -math.inf
    queue = _queue(parts, through, model)
    found: list[Accepted] = []
    doubted: list[Key] = []
    tried_at = -1
    while queue and len(found) < _MOST:
        _, key = heapq.heappop(queue)
        strength, gain = model.fit(through[key])
        score = gain - parts.penalty(key)
        if queue and -queue[0][0] > score:
            heapq.heappush(queue, (-score, key))  # it was better before others were accepted
            continue
        if gain <= 0 or score <= threshold:
            left = [key, *(other for _, other in queue)]
            by_fit = _doubted(left, lambda own: model.fit(own)[1], parts, through, model)
            doubted = by_fit[:FEW]
            if len(found) > tried_at and _several(doubted, parts, through, model, threshold):
                tried_at = len(found)
                queue = _queue(parts, {one: through[one] for one in left}, model)
                continue
            doubted = list(dict.fromkeys([*_hot_once(left, parts, through, model), *doubted]))
            break
        if not model.enough(strength, through[key]) or not _whole(key, parts, through, model):
            continue
        near = _near(key, gain, parts, through, model)
        model.accept(through[key], strength)
        lags = {
            other: gain - before
            for other, before in near.items()
            if model.fit(through[other])[1] < _SAME * before
        }
        ties = tuple(sorted(o for o, lag in lags.items() if lag < _tie(key, o, through)))
        margin = max(0.0, min(lags.values(), default=gain))
        found.append(Accepted(key, through[key], ties, strength, gain, margin))
    return Explained(found, doubted)


def _queue(parts: Parts, through: Mapping[Key, list[int]], model: Model) -> list[tuple[float, Key]]:
    queue = [(parts.penalty(key) - model.fit(own)[1], key) for key, own in through.items()]
    heapq.heapify(queue)
    return queue


def _several(
    doubted: Sequence[Key],
    parts: Parts,
    through: Mapping[Key, list[int]],
    model: Model,
    threshold: float,
) -> bool:
    """Whether parts that spoil each other's yardstick are proven once all are left out of it.

    Each of two late hosts among eight makes the other look usual. All of them must then be proven.
    """
    chosen: list[Key] = []
    aside: set[int] = set()
    for key in doubted:
        own = through[key]
        known = any(alike(key, other) for other in chosen)
        if not known and len(aside.intersection(own)) * 2 < len(own):
            chosen.append(key)
            aside.update(own)
            if len(chosen) > 1:
                model.leave_out(aside)
                fits = [(one, *model.fit(through[one])) for one in chosen]
                if all(
                    gain - parts.penalty(one) > threshold and model.enough(strength, through[one])
                    for one, strength, gain in fits
                ):
                    return True
    model.leave_out(())
    return False


def _doubted(
    keys: Iterable[Key],
    gain: Callable[[Sequence[int]], float],
    parts: Parts,
    through: Mapping[Key, list[int]],
    model: Model,
) -> list[Key]:
    """Those whose evidence would convince a reader who had suspected them alone, hottest first."""
    ranked = sorted((parts.penalty(key) - gain(through[key]), key) for key in keys)
    return [
        key
        for loss, key in ranked
        if loss < -DOUBT and model.enough(model.fit(through[key])[0], through[key])
    ]


def _hot_once(
    left: Sequence[Key], parts: Parts, through: Mapping[Key, list[int]], model: Model
) -> list[Key]:
    """Paths that nothing but the limit of what one round may prove keeps from being suspected.

    The hottest first; of a path and its rails only the hottest.
    """
    pairs: dict[tuple[str, str], Key] = {}
    paths = (key for key in left if key.kind == "path")
    for key in _doubted(paths, model.hunch, parts, through, model):
        pairs.setdefault((key.one, key.other), key)
    return list(pairs.values())[:_MOST_PATHS]


def _whole(key: Key, parts: Parts, through: Mapping[Key, list[int]], model: Model) -> bool:
    """Whether a part is bad as such: most of what it holds shows it, and nobody most of it."""
    members = parts.members(key)
    if not members:
        return True
    strength, gain = model.fit(through[key])
    own = set(through[key])
    if key.kind == "leaf_rail":
        nodes = (theirs for other, theirs in through.items() if other.kind in ("node", "endpoint"))
        shared = [common for theirs in nodes if len(common := own.intersection(theirs)) > 1]
        if max((model.fit(sorted(common))[1] for common in shared), default=0.0) >= _SAME * gain:
            return False
    sharing = [*members, *_outside(members, through)] if key.kind == "leaf_rail" else members
    seen = [(one, sorted(own.intersection(through[one]))) for one in sharing if one in through]
    seen.sort(key=lambda two: -model.fit(two[1])[1] if two[1] else 0.0)
    hot = 0
    left = own
    for one, theirs in seen:
        # What two of them share counts for the likelier.
        mine = [number for number in theirs if number in left]
        if mine and model.shows(mine, strength, through[key]):
            hot += one in members
            left = left.difference(mine)
    together = [number for number in own if parts.whole(number)]
    if together and model.shows(together, strength, through[key]):
        return True
    return hot * 2 > len(members) and (key.kind != "leaf_rail" or hot >= _LEAF)


def _outside(members: Sequence[Key], through: Mapping[Key, list[int]]) -> list[Key]:
    """What else of their kind is suspected: a bad node elsewhere is met by all of a leaf."""
    like = members[0]
    known = set(members)
    return [
        key
        for key in through
        if key.kind == like.kind and key.rail == like.rail and key not in known
    ]


def _tie(key: Key, other: Key, through: Mapping[Key, list[int]]) -> float:
    """How near is as good. A wider part, of which the rest is clean, must do better than a part."""
    return _WIDER if set(through[key]) < set(through[other]) else TIE


def _near(
    key: Key, gain: float, parts: Parts, through: Mapping[Key, list[int]], model: Model
) -> dict[Key, float]:
    """Parts that share observations with it, and what each would gain in its place."""
    own = set(through[key])
    near: dict[Key, float] = {}
    for other, theirs in through.items():
        if other == key or own.isdisjoint(theirs) or alike(key, other):
            continue
        gains = model.fit(theirs)[1]
        rival = gains > gain - _RIVAL
        if gains > 0 and not (rival and not _whole(other, parts, through, model)):
            near[other] = gains
    return near
