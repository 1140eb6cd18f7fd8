"""The fewest parts that explain what stands out: greedy, with clean observations counted against.

Independent tests per node blame the partners of a bad one (two wrong blames per run at 4 nodes in
simulation). Here each accepted part takes its effect out of the observations before the next.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.decoding.parts import Key, Parts

TIE = 3.0
"""Nats: explanations nearer than that (20 to 1) are not told apart."""

_WIDER = 1.0

_SAME = 0.5
"""A rival explains the same if most of its gain is gone once the other is accepted."""

_DOUBT, _FEW = 5.0, 8
"""Nats from which a part is worth a second look, and how many are looked at again."""

_MOST = 256
"""Parts at fault that one search names; more is no list of faults."""


class Model(Protocol):
    """What healthy observations look like, and what a fault does to them."""

    def fit(self, through: Sequence[int]) -> tuple[float, float]:
        """The strength of a fault of a part with these observations, and its gain in nats."""

    def accept(self, through: Sequence[int], strength: float) -> None:
        """From now on these observations are expected to show it."""

    def enough(self, strength: float, through: Sequence[int]) -> bool:
        """Whether a fault of that strength matters at all."""


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
    queue = [(parts.penalty(key) - model.fit(own)[1], key) for key, own in through.items()]
    heapq.heapify(queue)
    found: list[Accepted] = []
    doubted: list[Key] = []
    while queue and len(found) < _MOST:
        _, key = heapq.heappop(queue)
        strength, gain = model.fit(through[key])
        score = gain - parts.penalty(key)
        if queue and -queue[0][0] > score:
            heapq.heappush(queue, (-score, key))  # it was better before others were accepted
            continue
        if gain <= 0 or score <= threshold:
            doubted = _doubted([key, *(other for _, other in queue)], parts, through, model)
            break
        if not model.enough(strength, through[key]) or not _whole(key, gain, through, model):
            continue
        near = _near(key, through, model)
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


def _doubted(
    left: Sequence[Key], parts: Parts, through: Mapping[Key, list[int]], model: Model
) -> list[Key]:
    """Those whose evidence would convince a reader who had suspected them alone."""
    scored: list[tuple[float, Key]] = []
    for key in left:
        strength, gain = model.fit(through[key])
        score = gain - parts.penalty(key)
        if score > _DOUBT and model.enough(strength, through[key]):
            scored.append((-score, key))
    return [key for _, key in sorted(scored)[:_FEW]]


def _whole(key: Key, gain: float, through: Mapping[Key, list[int]], model: Model) -> bool:
    """Whether a leaf switch is bad as such: no single node under it accounts for most of that."""
    if key.kind != "leaf_rail":
        return True
    own = set(through[key])
    nodes = (theirs for other, theirs in through.items() if other.kind in ("node", "endpoint"))
    shared = [common for theirs in nodes if len(common := own.intersection(theirs)) > 1]
    worst = max((model.fit(sorted(common))[1] for common in shared), default=0.0)
    return worst < _SAME * gain


def _tie(key: Key, other: Key, through: Mapping[Key, list[int]]) -> float:
    """How near is as good. A wider part, of which the rest is clean, must do better than a part."""
    return _WIDER if set(through[key]) < set(through[other]) else TIE


def _near(key: Key, through: Mapping[Key, list[int]], model: Model) -> dict[Key, float]:
    """Parts that share observations with it, and what each would gain in its place."""
    own = set(through[key])
    gains = {
        other: model.fit(theirs)[1]
        for other, theirs in through.items()
        if other != key and not own.isdisjoint(theirs)
    }
    return {other: gain for other, gain in gains.items() if gain > 0}
