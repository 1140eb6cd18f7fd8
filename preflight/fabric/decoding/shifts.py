"""Slower than its peers, all the time: bandwidth at the wire's sizes, latency at the least.

Times are compared in logarithms, in units of what the rest of the fabric scatters. The yardstick of
a part is all that does not go through it: whoever shares a node with a slow one is slow as well.
Heavy tails are expected (Student's t, 8 degrees of freedom): one busy second of one host is no
proof, the same shift with several partners is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from preflight.fabric.measure import WIRE_BOUND
from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from preflight.fabric.decoding.meetings import Meetings
    from preflight.fabric.decoding.parts import Place
    from preflight.fabric.digest import Digest
    from preflight.fabric.samples import Phase

_DEGREES = 8.0
_HOT = 3.0
_LEAST_PEERS = 3
_MANY_PEERS = 200
_FEW_PEERS = 10
_NORMAL = 1.4826  # from a median absolute deviation to a normal distribution's standard deviation
_RANGE = 1.7  # from the range of three normal values to their standard deviation
_DENSE = 0.4
_LEAST_US = 1e-3
_TAIL_SHARE, _TAIL_SCALES = 0.95, 2.0


class Shifted(NamedTuple):
    """Log time of each pair on one rail in one round, against all pairs at the same sizes."""

    places: list[Place]
    logs: list[float]


class _Base(NamedTuple):
    """The rest of the fabric: its typical log time and its scatter."""

    log: float
    scatter: float


class Shifts:
    """The model of `explain` for observations that a fault makes slower by a constant factor."""

    def __init__(self, logs: Sequence[float], *, effect: float, floor: float) -> None:
        """`effect`: in log time, what matters at all. `floor`: scatter that is always believed."""
        self._logs = logs
        self._expected = [0.0] * len(logs)
        self._effect = effect
        self._floor = floor
        self._whole = self._base_of(self._logs)

    @property
    def scatter(self) -> float:
        """Of what is healthy, in log time."""
        return self._whole.scatter

    def hot(self) -> list[int]:
        """Observations that stand out at all, by effect: their parts are looked at."""
        least = self._whole.log + min(self._effect, _HOT * self._whole.scatter)
        fastest = median(sorted(self._logs)[: max(1, len(self._logs) // 4)]) if self._logs else 0.0
        bound = min(least, fastest + self._effect)
        return [number for number, log in enumerate(self._logs) if log > bound]

    def fit(self, through: Sequence[int]) -> tuple[float, float]:
        """The median shift that is not explained yet, in log time, and what assuming it gains."""
        base = self._base(through)
        if base is None:
            return 0.0, 0.0
        shift = median([self._logs[number] - base.log for number in through])
        gain = 0.0
        for number in through:
            expected = self._expected[number]
            if shift > expected:
                away = self._logs[number] - base.log
                gain += surprise((away - expected) / base.scatter)
                gain -= surprise((away - shift) / base.scatter)
        return shift, gain

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

    def _base(self, through: Sequence[int]) -> _Base | None:
        """What does not go through the part, and is not slow for a reason known already."""
        if len(self._logs) - len(through) > _MANY_PEERS and len(through) * 10 < len(self._logs):
            return self._whole
        own = set(through)
        rest = [
            log
            for number, log in enumerate(self._logs)
            if number not in own and not self._expected[number]
        ]
        return self._base_of(rest) if len(rest) >= _LEAST_PEERS else None

    def _base_of(self, logs: Sequence[float]) -> _Base:
        """Faults only slow down, so what is faster than typical speaks for the scatter of both."""
        if not logs:
            return _Base(0.0, self._floor)
        ranked = sorted(logs)
        if len(ranked) < _FEW_PEERS:
            middle = median(ranked)
            spread = (ranked[-1] - ranked[0]) / _RANGE
        else:
            middle = _densest(ranked)
            spread = 0.0
        below = sorted(middle - log for log in ranked if log <= middle)
        scatter = _NORMAL * median(below)
        tail = below[int(_TAIL_SHARE * (len(below) - 1))] / _TAIL_SCALES
        return _Base(middle, max(self._floor, spread, scatter, tail))


def _densest(ranked: Sequence[float]) -> float:
    """The median of the densest two fifths: typical even where most pairs touch a slow node."""
    wide = math.ceil(_DENSE * len(ranked))
    starts = range(len(ranked) - wide + 1)
    start = min(starts, key=lambda at: ranked[at + wide - 1] - ranked[at])
    return median(ranked[start : start + wide])


def shifts(met: Meetings, leaves: Mapping[str, str], wanted: Callable[[int], bool]) -> Shifted:
    """One per pair, rail and round: the median over the wanted sizes of its distance to all."""
    gathered: list[list[float]] = [[] for _ in met.places]
    for rows, times_us in _groups(met, leaves, wanted).values():
        typical_us = median(times_us)
        for row, time_us in zip(rows, times_us, strict=True):
            gathered[row].append(math.log(time_us / typical_us))
    return Shifted(
        [place for place, logs in zip(met.places, gathered, strict=True) if logs],
        [median(logs) for logs in gathered if logs],
    )


class _Group(NamedTuple):
    """What is compared with each other: rows of `Meetings`, and the time of each."""

    rows: list[int]
    times_us: list[float]


def _groups(
    met: Meetings, leaves: Mapping[str, str], wanted: Callable[[int], bool]
) -> dict[tuple[int, Phase, bool], _Group]:
    """By size, phase, and whether both ends are under one leaf."""
    near = [_near(place, leaves) for place in met.places] if leaves else []
    groups: dict[tuple[int, Phase, bool], _Group] = {}
    for (size_bytes, phase), (rows, digests) in met.columns.items():
        if wanted(size_bytes):
            times_us = _times_us(size_bytes, digests)
            if not near:
                groups[size_bytes, phase, False] = _Group(rows, times_us)
                continue
            for row, time_us in zip(rows, times_us, strict=True):
                group = groups.setdefault((size_bytes, phase, near[row]), _Group([], []))
                group.rows.append(row)
                group.times_us.append(time_us)
    return groups


def _near(place: Place, leaves: Mapping[str, str]) -> bool:
    leaf = leaves.get(place.a)
    return leaf is not None and leaf == leaves.get(place.b)


def _times_us(size_bytes: int, digests: Sequence[Digest]) -> list[float]:
    """Of the wire's sizes the fastest: a slow link slows all, a busy host leaves some alone."""
    if of_the_wire(size_bytes):
        return [max(digest.best_us, _LEAST_US) for digest in digests]
    return [max(digest.p50_us, _LEAST_US) for digest in digests]


def of_the_wire(size_bytes: int) -> bool:
    """Whether that size tells of bandwidth."""
    return size_bytes >= WIRE_BOUND


def of_latency(size_bytes: int) -> bool:
    """Whether that size is all latency."""
    return size_bytes < WIRE_BOUND


def surprise(scales: float) -> float:
    """Negative log likelihood, up to a constant, of a deviation in healthy scatter."""
    return (_DEGREES + 1) / 2 * math.log1p(scales * scales / _DEGREES)
