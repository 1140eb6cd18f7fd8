"""Finds constant slowness: bandwidth at large sizes, latency at the smallest.

Times are compared as logarithms, in units of the scatter of the rest of the fabric. A part is
compared with all that does not go through it, since all pairs of a slow node are slow.
Heavy tails are expected (Student's t, 8 degrees of freedom): one busy second of one host is no
proof, the same shift with several partners is.

Pairs under one leaf and pairs across a spine are not compared with each other, unless faults leave
no other pairs: one slow leaf of two slows every pair between them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from itertools import compress
from typing import TYPE_CHECKING, Literal, NamedTuple

from preflight.core.statistics import SIGMA_MAD, median
from preflight.fabric.decoding.greedy_search import Model
from preflight.fabric.pair_summary import LATENCY_BELOW, wire_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from preflight.fabric.decoding.parts import Column, Meetings, Place
    from preflight.fabric.observed import Observed
    from preflight.fabric.samples import Phase

    _Kind = tuple[int, Phase, bool]
    """Bytes, phase, and whether both ends are under one leaf."""
    _Leaf = tuple[str | None, int]
    """A leaf, and a rail of the nodes under it."""


_DEGREES = 8.0
OUTLIER_SCATTERS = 3.0
"""In units of the usual scatter: what is slower by more is examined."""

_LEAST_PEERS = 3
_MANY_PEERS = 200
_FEW_PEERS, _ENOUGH_PEERS = 10, 20
_RANGE = 1.7  # from the range of three normal values to their standard deviation
_DENSE = 0.4
_TAIL_SHARE, _TAIL_SCALES = 0.95, 2.0


class _Reference(NamedTuple):
    """What a part is compared with, the rest of the fabric: typical log time and scatter."""

    log: float
    scatter: float


def shifts_of(
    meetings: Meetings,
    observed: Observed,
    symptom: Literal["slow", "latency"],
    limit: Callable[[str], float],
) -> Shifts:
    """Return the model of one symptom: bandwidth at large sizes, or latency at the least."""
    wanted: Callable[[int], bool] = is_latency_size
    if symptom == "slow":
        least_bytes, floor = wire_from(observed.backend), limit("bandwidth_scatter")
        wanted, effect = least_bytes.__le__, -math.log(1 - limit("slow_effect"))
    else:
        floor, effect = limit("latency_scatter"), math.log1p(limit("latency_effect"))
    return Shifts(log_times(meetings, observed.leaves, wanted, effect), effect=effect, floor=floor)


class Shifts(Model):
    """The model of `explain` for observations that a fault makes slower by a constant factor."""

    def __init__(self, observed: LogTimes, *, effect: float, floor: float) -> None:
        """`floor`: the least scatter that is assumed."""
        self.timed = observed
        self._logs = observed.logs
        self._places = observed.places
        self._repeated = observed.repeated
        self._expected = [0.0] * len(self._logs)
        self.effect = effect
        """In log time, the least shift that matters."""
        self._floor = floor
        self._overall = self._reference_of(self._logs)

    @property
    def scatter(self) -> float:
        """The scatter of good observations, in log time."""
        return self._overall.scatter

    @property
    def stands_out(self) -> float:
        """The excess, in log time, by which an observation stands out of the usual scatter."""
        return min(self.effect, OUTLIER_SCATTERS * self._overall.scatter)

    def outliers(self) -> list[int]:
        """Observations that stand out: their parts are examined."""
        least = self._overall.log + self.stands_out
        fastest = median(sorted(self._logs)[: max(1, len(self._logs) // 4)]) if self._logs else 0.0
        bound = min(least, fastest + self.effect)
        return [row for row, log in enumerate(self._logs) if log > bound]

    def fit(self, through: Sequence[int]) -> tuple[float, float]:
        """Return the median shift of a part over its partners, in log time, and its gain."""
        reference = self._reference(through)
        if reference is None:
            return 0.0, 0.0
        shift = self._typical(through) - reference.log
        return shift, self._gain(through, shift, reference)

    def fits_fault(self, rows: Sequence[int], strength: float, through: Sequence[int]) -> bool:
        """Whether these rows fit a fault of that strength better than none."""
        reference = self._reference(through)
        return reference is not None and self._gain(rows, strength, reference) > 0

    def _gain(self, rows: Sequence[int], shift: float, reference: _Reference) -> float:
        """Return by how many nats rows fit a shift better than what is expected of them."""
        gain = 0.0
        for row in rows:
            expected = self._expected[row]
            if shift > expected:
                distance = self._logs[row] - reference.log
                gain += surprise((distance - expected) / reference.scatter)
                gain -= surprise((distance - shift) / reference.scatter)
        return gain

    def accept(self, through: Sequence[int], strength: float) -> None:
        """Expect this shift in these observations, unless a slower part is already expected."""
        for row in through:
            self._expected[row] = max(self._expected[row], strength)
        rest = [
            log for log, expected in zip(self._logs, self._expected, strict=True) if not expected
        ]
        self._overall = self._reference_of(rest or self._logs)

    def matters(self, strength: float, through: Sequence[int]) -> bool:
        """Whether the shift is large enough to matter."""
        del through
        return strength >= self.effect

    def _typical(self, through: Sequence[int]) -> float:
        """Return the typical shift; a partner counts once, however often it was met."""
        if not self._repeated:
            return _lower_median([self._logs[row] for row in through])
        by_place: dict[Place, list[float]] = defaultdict(list)
        for row in through:
            by_place[self._places[row]].append(self._logs[row])
        return _lower_median([_lower_median(logs) for logs in by_place.values()])

    def _reference(self, through: Sequence[int]) -> _Reference | None:
        """Return the reference for a part: what goes through no known fault and not through it."""
        if len(self._logs) - len(through) > _MANY_PEERS and len(through) * 10 < len(self._logs):
            return self._overall
        excluded = self._excluded.union(through)
        rows = (row for row, shift in enumerate(self._expected) if not shift)
        rest = [self._logs[row] for row in rows if row not in excluded]
        if len(rest) < _LEAST_PEERS:
            return None
        reference = self._reference_of(rest)
        if len(rest) >= _ENOUGH_PEERS:
            return reference
        # Few may agree by chance: use the scatter of those through the part as well.
        logs = [self._logs[row] for row in through]
        return reference._replace(scatter=max(reference.scatter, (max(logs) - min(logs)) / _RANGE))

    def _reference_of(self, logs: Sequence[float]) -> _Reference:
        """Return centre and scatter; faults only slow down, so faster values show the scatter."""
        if not logs:
            return _Reference(0.0, self._floor)
        ranked = sorted(logs)
        if len(ranked) < _FEW_PEERS:
            middle = median(ranked)
            spread = (ranked[-1] - ranked[0]) / _RANGE
        else:
            middle = _densest(ranked, self.effect)
            spread = 0.0
        below = [middle - log for log in reversed(ranked[: bisect_right(ranked, middle)])]
        scatter = SIGMA_MAD * median(below)
        tail = below[int(_TAIL_SHARE * (len(below) - 1))] / _TAIL_SCALES
        return _Reference(middle, max(self._floor, spread, scatter, tail))


def _lower_median(values: Sequence[float]) -> float:
    """Return the lower median: a part with two partners is as bad as with its better one."""
    return sorted(values)[(len(values) - 1) // 2]


def _densest(ranked: Sequence[float], distance: float) -> float:
    """Return the median of the densest two fifths: typical even if most pairs touch a slow node.

    Faults only slow down: if as many are faster by `distance` or more, those are the good ones.
    """
    width = math.ceil(_DENSE * len(ranked))
    middle = _median_of_densest(ranked, width)
    while len(faster := [log for log in ranked if log < middle - distance]) >= width:
        middle = _median_of_densest(faster, width)
    return middle


def _median_of_densest(ranked: Sequence[float], width: int) -> float:
    starts = range(len(ranked) - width + 1)
    start = min(starts, key=lambda first: ranked[first + width - 1] - ranked[first])
    return median(ranked[start : start + width])


def surprise(scales: float) -> float:
    """Return the negative log likelihood, up to a constant, of a deviation in usual scatter."""
    return (_DEGREES + 1) / 2 * math.log1p(scales * scales / _DEGREES)


def scales_of(nats: float) -> float:
    """Return the deviation with that `surprise`."""
    return math.sqrt(_DEGREES * math.expm1(2 * nats / (_DEGREES + 1)))


_LEAST_US = 1e-3


class LogTimes(NamedTuple):
    """Log time of each pair on one rail in one round, relative to all pairs at the same sizes."""

    places: list[Place]
    logs: list[float]
    repeated: bool
    """Whether any pair was measured in more rounds than one."""
    rows: Sequence[int] = ()
    """Of `Meetings`, one for each."""


class _Group(NamedTuple):
    """Rows of `Meetings` that are compared with each other, and the time of each."""

    rows: list[int]
    times_us: list[float]


def log_times(
    meetings: Meetings, leaves: Mapping[str, str], wanted: Callable[[int], bool], effect: float
) -> LogTimes:
    """Return, per pair, rail and round, its log time relative to all pairs, at a median size.

    `effect`: in log time; no pair is compared with those of a leaf that is slower by more.
    """
    groups = _groups(meetings, leaves, wanted)
    slow = _slow_leaves(meetings, groups, leaves, effect)
    columns_by_size: dict[tuple[int, Phase], list[float | None]] = {}
    for kind, (rows, times_us) in groups.items():
        reference = _reference_times(kind, groups, meetings, leaves, slow) if slow else times_us
        typical_us = _lower_quartile(reference)
        column = columns_by_size.setdefault(kind[:2], [None] * len(meetings.places))
        for row, time_us in zip(rows, times_us, strict=True):
            column[row] = math.log(time_us / typical_us)
    # No list per pair: for 131,072 pairs a few numbers are cheap, lists are not.
    columns = list(columns_by_size.values())
    several = len(columns) != 1
    logs = list(map(_median, zip(*columns, strict=True))) if several else columns[0]
    pairs = {meetings.places[rows[0]][:2] for rows in meetings.by_pair}
    return LogTimes(
        [place for place, log in zip(meetings.places, logs, strict=False) if log is not None],
        [log for log in logs if log is not None],
        len(pairs) < len(meetings.by_pair),
        [row for row, log in enumerate(logs) if log is not None],
    )


def _median(logs: Iterable[float | None]) -> float | None:
    present = [log for log in logs if log is not None]
    return median(present) if present else None


def _groups(
    meetings: Meetings, leaves: Mapping[str, str], wanted: Callable[[int], bool]
) -> dict[_Kind, _Group]:
    under_leaf = [_under_one_leaf(place, leaves) for place in meetings.places]
    groups: dict[_Kind, _Group] = {}
    for (size_bytes, phase), column in meetings.columns.items():
        if wanted(size_bytes):
            group = _Group(column.rows, _times_us(size_bytes, column))
            for flag in {under_leaf[row] for row in group.rows}:
                groups[size_bytes, phase, flag] = _filter(group, under_leaf, wanted=flag)
    return groups


def _filter(group: _Group, flags: Sequence[bool], *, wanted: bool) -> _Group:
    mask = [flags[row] is wanted for row in group.rows]
    return _Group(list(compress(group.rows, mask)), list(compress(group.times_us, mask)))


def _slow_leaves(
    meetings: Meetings, groups: Mapping[_Kind, _Group], leaves: Mapping[str, str], effect: float
) -> set[_Leaf]:
    """Return leaves whose nodes are slow with each other."""
    logs_of_leaf: dict[_Leaf, list[float]] = defaultdict(list)
    for (_, _, under_one_leaf), (rows, times_us) in groups.items():
        if under_one_leaf:
            typical_us = _lower_quartile(times_us)
            for row, time_us in zip(rows, times_us, strict=True):
                place = meetings.places[row]
                logs_of_leaf[leaves.get(place.a), place.rail].append(math.log(time_us / typical_us))
    return {leaf for leaf, logs in logs_of_leaf.items() if median(logs) > effect}


def _reference_times(
    kind: _Kind,
    groups: Mapping[_Kind, _Group],
    meetings: Meetings,
    leaves: Mapping[str, str],
    slow: set[_Leaf],
) -> list[float]:
    """Return the times to compare with: of far pairs that touch no slow leaf, else of near pairs.

    A near pair is under one leaf, and is compared with all near pairs.
    """
    size_bytes, phase, under_one_leaf = kind
    rows, times_us = groups[kind]
    if under_one_leaf:
        return times_us
    healthy: list[tuple[Place, float]] = []
    for row, time_us in zip(rows, times_us, strict=True):
        place = meetings.places[row]
        if slow.isdisjoint((leaves.get(name), place.rail) for name in (place.a, place.b)):
            healthy.append((place, time_us))
    if healthy and not set.intersection(*({place.a, place.b} for place, _ in healthy)):
        return [time_us for _, time_us in healthy]
    # Pairs that all share one node are as slow as that node: do not compare with them.
    return groups.get((size_bytes, phase, True), groups[kind]).times_us


def _lower_quartile(times_us: Sequence[float]) -> float:
    """Return the lower quartile: one slow leaf of four slows half of all far pairs."""
    return sorted(times_us)[(len(times_us) - 1) // 4]


def _under_one_leaf(place: Place, leaves: Mapping[str, str]) -> bool:
    leaf = leaves.get(place.a)
    return leaf is not None and leaf == leaves.get(place.b)


def _times_us(size_bytes: int, column: Column) -> list[float]:
    """Return times; at large sizes the fastest: a slow link slows all, a busy host only some."""
    times_us = column.p50_us if is_latency_size(size_bytes) else column.best_us
    return [max(time_us, _LEAST_US) for time_us in times_us]


def is_latency_size(size_bytes: int) -> bool:
    """Whether that size is all latency."""
    return size_bytes < LATENCY_BELOW
