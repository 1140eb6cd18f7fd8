"""Slower than its peers, all the time: bandwidth at the wire's sizes, latency at the least.

Times are compared in logarithms, in units of what the rest of the fabric scatters. The yardstick of
a part is all that does not go through it: whoever shares a node with a slow one is slow as well.
Heavy tails are expected (Student's t, 8 degrees of freedom): one busy second of one host is no
proof, the same shift with several partners is.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from preflight.fabric.decoding.logtimes import LogTimes
    from preflight.fabric.decoding.parts import Place

_DEGREES = 8.0
HOT = 3.0
"""Of the healthy scatter: what is slower by more is looked at."""

_LEAST_PEERS = 3
_MANY_PEERS = 200
_FEW_PEERS, _ENOUGH_PEERS = 10, 20
_NORMAL = 1.4826  # from a median absolute deviation to a normal distribution's standard deviation
_RANGE = 1.7  # from the range of three normal values to their standard deviation
_DENSE = 0.4
_TAIL_SHARE, _TAIL_SCALES = 0.95, 2.0


class _Base(NamedTuple):
    """The rest of the fabric: its typical log time and its scatter."""

    log: float
    scatter: float


class Shifts:
    """The model of `explain` for observations that a fault makes slower by a constant factor."""

    def __init__(self, observed: LogTimes, *, effect: float, floor: float) -> None:
        """`effect`: in log time, what matters at all. `floor`: scatter that is always believed."""
        self._logs = observed.logs
        self._places = observed.places
        self._again = observed.again
        self._expected = [0.0] * len(self._logs)
        self._effect = effect
        self._floor = floor
        self._aside: frozenset[int] = frozenset()
        self._whole = self._base_of(self._logs)

    @property
    def scatter(self) -> float:
        """Of what is healthy, in log time."""
        return self._whole.scatter

    def hot(self) -> list[int]:
        """Observations that stand out at all, by effect: their parts are looked at."""
        least = self._whole.log + min(self._effect, HOT * self._whole.scatter)
        fastest = median(sorted(self._logs)[: max(1, len(self._logs) // 4)]) if self._logs else 0.0
        bound = min(least, fastest + self._effect)
        return [number for number, log in enumerate(self._logs) if log > bound]

    def fit(self, through: Sequence[int]) -> tuple[float, float]:
        """The median shift over its partners, in log time, and what assuming it gains."""
        base = self._base(through)
        if base is None:
            return 0.0, 0.0
        shift = self._typical(through) - base.log
        gain = 0.0
        for number in through:
            expected = self._expected[number]
            if shift > expected:
                away = self._logs[number] - base.log
                gain += surprise((away - expected) / base.scatter)
                gain -= surprise((away - shift) / base.scatter)
        return shift, gain

    def hunch(self, through: Sequence[int]) -> float:
        """The same gain: a median does not come in bursts."""
        return self.fit(through)[1]

    def shows(self, some: Sequence[int], strength: float, beside: Sequence[int]) -> bool:
        """Whether these fit a fault of that strength better than none; `beside`: healthy there."""
        base = self._base(beside)
        if base is None:
            return False
        gain = 0.0
        for number in some:
            away = self._logs[number] - base.log
            gain += surprise((away - self._expected[number]) / base.scatter)
            gain -= surprise((away - max(strength, self._expected[number])) / base.scatter)
        return gain > 0

    def leave_out(self, some: Collection[int]) -> None:
        """These are no yardstick for others any more: several parts seem to be at fault at once."""
        self._aside = frozenset(some)

    def accept(self, through: Sequence[int], strength: float) -> None:
        """The slowest part on the way sets the pace."""
        for number in through:
            self._expected[number] = max(self._expected[number], strength)
        rest = [log for log, known in zip(self._logs, self._expected, strict=True) if not known]
        self._whole = self._base_of(rest or self._logs)

    def enough(self, strength: float, through: Sequence[int]) -> bool:
        """Whether it is slower by as much as anybody would mind."""
        del through
        return strength >= self._effect

    def _typical(self, through: Sequence[int]) -> float:
        """A partner counts once, however often it was met."""
        if not self._again:
            return _lower_median([self._logs[number] for number in through])
        met: dict[Place, list[float]] = defaultdict(list)
        for number in through:
            met[self._places[number]].append(self._logs[number])
        return _lower_median([_lower_median(logs) for logs in met.values()])

    def _base(self, through: Sequence[int]) -> _Base | None:
        """What does not go through the part, and is not slow for a reason known already."""
        if len(self._logs) - len(through) > _MANY_PEERS and len(through) * 10 < len(self._logs):
            return self._whole
        own = self._aside.union(through)
        rest = [
            log
            for number, log in enumerate(self._logs)
            if number not in own and not self._expected[number]
        ]
        if len(rest) < _LEAST_PEERS:
            return None
        base = self._base_of(rest)
        if len(rest) >= _ENOUGH_PEERS:
            return base
        # Few agree by chance: those that go through the part tell of the scatter as well.
        logs = [self._logs[number] for number in through]
        return base._replace(scatter=max(base.scatter, (max(logs) - min(logs)) / _RANGE))

    def _base_of(self, logs: Sequence[float]) -> _Base:
        """Faults only slow down, so what is faster than typical speaks for the scatter of both."""
        if not logs:
            return _Base(0.0, self._floor)
        ranked = sorted(logs)
        if len(ranked) < _FEW_PEERS:
            middle = median(ranked)
            spread = (ranked[-1] - ranked[0]) / _RANGE
        else:
            middle = _densest(ranked, self._effect)
            spread = 0.0
        below = [middle - log for log in reversed(ranked[: bisect_right(ranked, middle)])]
        scatter = _NORMAL * median(below)
        tail = below[int(_TAIL_SHARE * (len(below) - 1))] / _TAIL_SCALES
        return _Base(middle, max(self._floor, spread, scatter, tail))


def _lower_median(values: Sequence[float]) -> float:
    """Of an even number the lower of the two: a part with two partners is as bad as its better."""
    return sorted(values)[(len(values) - 1) // 2]


def _densest(ranked: Sequence[float], apart: float) -> float:
    """The median of the densest two fifths: typical even where most pairs touch a slow node.

    Faults only slow down: where as many are faster, `apart` or more, those are the healthy ones.
    """
    wide = math.ceil(_DENSE * len(ranked))
    middle = _of_densest(ranked, wide)
    while len(faster := [log for log in ranked if log < middle - apart]) >= wide:
        middle = _of_densest(faster, wide)
    return middle


def _of_densest(ranked: Sequence[float], wide: int) -> float:
    starts = range(len(ranked) - wide + 1)
    start = min(starts, key=lambda at: ranked[at + wide - 1] - ranked[at])
    return median(ranked[start : start + wide])


def surprise(scales: float) -> float:
    """Negative log likelihood, up to a constant, of a deviation in healthy scatter."""
    return (_DEGREES + 1) / 2 * math.log1p(scales * scales / _DEGREES)
