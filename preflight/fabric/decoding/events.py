"""Spikes and late starts: what stood out is an event, told apart by whose clock shows it.

What both ends saw is the network's. Where only one end waited, the other end's own gap before the
operation says whether that host began late; if it does not, the delay was on the wire: a loss in
one direction looks one-sided too, at the end that waits for the packet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from preflight.fabric.decoding.exposures import Exposures
from preflight.fabric.decoding.parts import ALL_RAILS, Place
from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.decoding.meetings import Kind, Meetings
    from preflight.fabric.digest import Digest, Standout

MEDIANS = 20.0
"""A spike takes at least so many of its peers' medians."""

ONE_EVENT_S = 0.05
"""Exceedances that are nearer in time, over sizes and rails of a pair, are one event."""

_EXPLAINS = 0.5
"""Share of the excess that a host's own gap must account for to make that host late."""

_MOST_RAILS = 0.5
"""An event on more of a pair's rails than this share is the node's, not each rail's."""


class Watched(NamedTuple):
    """A whole fabric: events of the wire per pair, late starts per host."""

    wire: Exposures
    late: Exposures
    """`place.b` is empty: a late start is one host's own."""
    limits_us: dict[Kind, float]
    """From which time on an operation of that size is a spike."""


class _Load(NamedTuple):
    """Of one pair in one round: its rails, and all together where there are several."""

    rails: list[int]
    operations: list[int]
    loaded_s: list[float]


class _Mark(NamedTuple):
    """One operation that took too long."""

    at_s: float
    rail: int
    us: float


def watch(met: Meetings, least_us: float) -> Watched:
    """Count events; `least_us`: what is never a spike on that kind of network."""
    limits_us = _limits(met, least_us)
    marks = _marks(met, limits_us)
    operations, loaded_s = _loads(met)
    watched = Watched(Exposures(), Exposures(), limits_us)
    for rows in met.together:
        a, b, _ = met.places[rows[0]]
        load = _Load(
            [met.places[row].rail for row in rows],
            [operations[row] for row in rows],
            [loaded_s[row] for row in rows],
        )
        if len(rows) > 1:
            load.rails.append(ALL_RAILS)
            load.operations.append(max(load.operations))
            load.loaded_s.append(max(load.loaded_s))
        own = [each for row in rows if row in marks for each in marks[row]]
        _put(watched.wire, a, b, load, [mark for host, mark in own if not host])
        _put(watched.late, a, "", load, [mark for host, mark in own if host == a])
        _put(watched.late, b, "", load, [mark for host, mark in own if host == b])
    return watched


def _loads(met: Meetings) -> tuple[list[int], list[float]]:
    """Operations and loaded seconds of each row, of all sizes together."""
    operations = [0] * len(met.places)
    loaded_s = [0.0] * len(met.places)
    for column in met.columns.values():
        for row, digest in zip(column.rows, column.digests, strict=True):
            operations[row] += digest.operations
            loaded_s[row] += digest.loaded_s
    return operations, loaded_s


def _limits(met: Meetings, least_us: float) -> dict[Kind, float]:
    return {
        kind: max(least_us, MEDIANS * median([digest.p50_us for digest in column.digests]))
        for kind, column in met.columns.items()
    }


def _marks(met: Meetings, limits_us: Mapping[Kind, float]) -> dict[int, list[tuple[str, _Mark]]]:
    """Exceedances by row, each with the host that began late, or nobody for the wire."""
    marks: dict[int, list[tuple[str, _Mark]]] = {}
    for kind, (rows, digests) in met.columns.items():
        limit_us = limits_us[kind]
        for row, digest in zip(rows, digests, strict=True):
            for one in digest.standouts:
                longest = max(one.first_us, one.second_us)
                if longest > limit_us:
                    mark = _Mark(one.at_s, digest.rail, longest)
                    marks.setdefault(row, []).append((_late(digest, one), mark))
    return marks


def _late(digest: Digest, one: Standout) -> str:
    """Whose own gap explains why the other end waited; nobody's: it was the wire."""
    excess_us = abs(one.first_us - one.second_us)
    if one.first_us > one.second_us:
        host, gap_us = digest.b, one.second_gap_us - one.first_gap_us
    else:
        host, gap_us = digest.a, one.first_gap_us - one.second_gap_us
    one_sided = one.network_us < excess_us
    return host if one_sided and gap_us >= _EXPLAINS * excess_us else ""


def _put(exposures: Exposures, a: str, b: str, load: _Load, marks: Sequence[_Mark]) -> None:
    """One row per rail; and one for all together, which has what hit most of them at once."""
    places = [Place(a, b, rail) for rail in load.rails]
    first = exposures.add(places, load.operations, load.loaded_s)
    for cluster in _clusters(marks):
        worst_us = max(mark.us for mark in cluster)
        rails = {mark.rail for mark in cluster}
        if len(rails) > max(1.0, _MOST_RAILS * (len(places) - 1)):
            rails = {ALL_RAILS}
        for rail in rails:
            exposures.count(first + load.rails.index(rail), worst_us)


def _clusters(marks: Sequence[_Mark]) -> list[list[_Mark]]:
    """Those near in time are one event."""
    clusters: list[list[_Mark]] = []
    last_s = float("-inf")
    for mark in sorted(marks):
        if mark.at_s - last_s > ONE_EVENT_S:
            clusters.append([])
        clusters[-1].append(mark)
        last_s = mark.at_s
    return clusters
