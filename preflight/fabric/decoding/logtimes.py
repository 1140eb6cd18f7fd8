"""Log times of pairs, each held against healthy pairs like it: of its size, as near or as far.

Pairs under one leaf and pairs with a spine between them are not compared with each other, unless
faults leave nobody else: of two leaves a slow one slows every pair between them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

from preflight.fabric.measure import LATENCY_BELOW, wire_from
from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from preflight.fabric.decoding.meetings import Column, Meetings
    from preflight.fabric.decoding.parts import Place
    from preflight.fabric.samples import Phase

    _Kind = tuple[int, Phase, bool]
    """Bytes, phase, and whether both ends are under one leaf."""
    _Leaf = tuple[str | None, int]
    """A leaf, and a rail of the nodes under it."""

_LEAST_US = 1e-3


class LogTimes(NamedTuple):
    """Log time of each pair on one rail in one round, against all pairs at the same sizes."""

    places: list[Place]
    logs: list[float]
    again: bool
    """Whether any pair was measured in more rounds than one."""
    rows: Sequence[int] = ()
    """Of `Meetings`, one for each."""


class _Group(NamedTuple):
    """What is compared with each other: rows of `Meetings`, and the time of each."""

    rows: list[int]
    times_us: list[float]


def log_times(
    met: Meetings, leaves: Mapping[str, str], wanted: Callable[[int], bool], effect: float
) -> LogTimes:
    """One per pair, rail and round: the median over the wanted sizes of its distance to all.

    `effect`: in log time, from where on a leaf is too slow to be a yardstick for others.
    """
    groups = _groups(met, leaves, wanted)
    slow = _slow_leaves(met, groups, leaves, effect)
    gathered: dict[tuple[int, Phase], list[float | None]] = {}
    for kind, (rows, times_us) in groups.items():
        typical_us = _healthy(_yardstick(kind, groups, met, leaves, slow) if slow else times_us)
        own = gathered.setdefault(kind[:2], [None] * len(met.places))
        for row, time_us in zip(rows, times_us, strict=True):
            own[row] = math.log(time_us / typical_us)
    # No list per pair: a few numbers of 131,072 pairs are cheap, as many lists are not.
    logs = [_median(each) for each in zip(*gathered.values(), strict=True)]
    who = {met.places[rows[0]][:2] for rows in met.together}
    return LogTimes(
        [place for place, log in zip(met.places, logs, strict=False) if log is not None],
        [log for log in logs if log is not None],
        len(who) < len(met.together),
        [row for row, log in enumerate(logs) if log is not None],
    )


def _median(logs: Iterable[float | None]) -> float | None:
    known = [log for log in logs if log is not None]
    return median(known) if known else None


def _groups(
    met: Meetings, leaves: Mapping[str, str], wanted: Callable[[int], bool]
) -> dict[_Kind, _Group]:
    near = [_near(place, leaves) for place in met.places] if leaves else []
    groups: dict[_Kind, _Group] = {}
    for (size_bytes, phase), column in met.columns.items():
        if wanted(size_bytes):
            whole = _Group(column.rows, _times_us(size_bytes, column))
            if not near:
                groups[size_bytes, phase, False] = whole
                continue
            for same in {near[row] for row in whole.rows}:
                groups[size_bytes, phase, same] = _only(whole, near, same=same)
    return groups


def _only(whole: _Group, near: Sequence[bool], *, same: bool) -> _Group:
    kept = [near[row] is same for row in whole.rows]
    return _Group(list(compress(whole.rows, kept)), list(compress(whole.times_us, kept)))


def _slow_leaves(
    met: Meetings, groups: Mapping[_Kind, _Group], leaves: Mapping[str, str], effect: float
) -> set[_Leaf]:
    """Where nodes under one leaf are slow with each other."""
    within: dict[_Leaf, list[float]] = defaultdict(list)
    for (_, _, same), (rows, times_us) in groups.items():
        if same:
            typical_us = _healthy(times_us)
            for row, time_us in zip(rows, times_us, strict=True):
                place = met.places[row]
                within[leaves.get(place.a), place.rail].append(math.log(time_us / typical_us))
    return {leaf for leaf, logs in within.items() if median(logs) > effect}


def _yardstick(
    kind: _Kind,
    groups: Mapping[_Kind, _Group],
    met: Meetings,
    leaves: Mapping[str, str],
    slow: set[_Leaf],
) -> list[float]:
    """Far pairs are held against those far ones that touch no slow leaf, else against near ones."""
    size_bytes, phase, same = kind
    rows, times_us = groups[kind]
    if same:
        return times_us
    fit = [
        (place, time_us)
        for place, time_us in (
            (met.places[row], us) for row, us in zip(rows, times_us, strict=True)
        )
        if slow.isdisjoint(((leaves.get(place.a), place.rail), (leaves.get(place.b), place.rail)))
    ]
    everywhere = set.intersection(*({place.a, place.b} for place, _ in fit)) if fit else {""}
    if not everywhere:
        return [time_us for _, time_us in fit]
    # Pairs that all share one node are as slow as that node: no yardstick either.
    return groups.get((size_bytes, phase, True), groups[kind]).times_us


def _healthy(times_us: Sequence[float]) -> float:
    """Typical, by the lower quartile: one slow leaf of four slows half of all far pairs."""
    return sorted(times_us)[(len(times_us) - 1) // 4]


def _near(place: Place, leaves: Mapping[str, str]) -> bool:
    leaf = leaves.get(place.a)
    return leaf is not None and leaf == leaves.get(place.b)


def _times_us(size_bytes: int, column: Column) -> list[float]:
    """Of the wire's sizes the fastest: a slow link slows all, a busy host leaves some alone."""
    times_us = column.p50_us if of_latency(size_bytes) else column.best_us
    return [max(time_us, _LEAST_US) for time_us in times_us]


def of_the_wire(backend: str) -> Callable[[int], bool]:
    """Whether a size tells of bandwidth, with that backend."""
    return lambda size_bytes: size_bytes >= wire_from(backend)


def of_latency(size_bytes: int) -> bool:
    """Whether that size is all latency."""
    return size_bytes < LATENCY_BELOW
