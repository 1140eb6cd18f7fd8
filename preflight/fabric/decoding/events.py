"""Spikes and late starts: what stood out is an event, told apart by whose clock shows it.

What both ends saw is the network's. Where only one end waited, the other end's own gap before the
operation says whether that host began late; if it does not, the delay was on the wire: a loss in
one direction looks one-sided too, at the end that waits for the packet. A host that was frozen in
the middle of an operation is long at both ends: its supervisor saw it stand still.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from preflight.fabric.decoding.exposures import Exposures
from preflight.fabric.decoding.parts import ALL_RAILS, Place
from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.fabric.decoding.meetings import Kind, Meetings
    from preflight.fabric.digest import Digest, Standout

MEDIANS = 20.0
"""A spike takes at least so many of its peers' medians."""

ONE_EVENT_S = 0.05
"""Exceedances within so long, over sizes and rails of a pair, are one event."""

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


class Mark(NamedTuple):
    """One operation that took too long."""

    at_s: float
    rail: int
    us: float


def watch(met: Meetings, least_us: float) -> Watched:
    """Count events; `least_us`: what is never a spike on that kind of network."""
    limits_us = limits_of(met, least_us)
    marks = marks_of(met, limits_us)
    watched = Watched(Exposures(), Exposures(), limits_us)
    alone = _Alone()
    for rows in met.together:
        a, b, _ = met.places[rows[0]]
        places = [met.places[row] for row in rows]
        operations = [met.operations[row] for row in rows]
        loaded_s = [met.loaded_s[row] for row in rows]
        if len(rows) > 1:
            places.append(Place(a, b, ALL_RAILS))
            operations.append(max(operations))
            loaded_s.append(max(loaded_s))
        own = [each for row in rows if row in marks for each in marks[row]]
        for host, exposures in (("", watched.wire), (a, watched.late), (b, watched.late)):
            where = [alone[host, place.rail] for place in places] if host else places
            first = exposures.add(where, operations, loaded_s)
            _count(exposures, first, [mark for late, mark in own if late == host])
    return watched


class _Alone(dict[tuple[str, int], Place]):
    """The rails of single hosts, the same in each round."""

    def __missing__(self, key: tuple[str, int]) -> Place:
        host, rail = key
        return self.setdefault(key, Place(host, "", rail))


def limits_of(met: Meetings, least_us: float) -> dict[Kind, float]:
    """From which time on an operation of each size is a spike."""
    return {
        kind: max(least_us, MEDIANS * median(column.p50_us)) for kind, column in met.columns.items()
    }


def marks_of(met: Meetings, limits_us: Mapping[Kind, float]) -> dict[int, list[tuple[str, Mark]]]:
    """Exceedances by row, each with the host that began late, or nobody for the wire."""
    marks: dict[int, list[tuple[str, Mark]]] = {}
    for row, digest in met.standing_out:
        limit_us = limits_us[digest.size_bytes, digest.phase]
        for one in digest.standouts:
            longest = max(one.first_us, one.second_us)
            if longest > limit_us:
                mark = Mark(one.at_s, digest.rail, longest)
                marks.setdefault(row, []).append((_late(digest, one), mark))
    return marks


def _late(digest: Digest, one: Standout) -> str:
    """Who began late, or stood still in the middle of it; nobody: it was the wire."""
    return _began_late(digest, one) or _stood_still(digest, one)


def _stood_still(digest: Digest, one: Standout) -> str:
    """The one end whose standstill explains it; where both did, the machine is shared."""
    enough_us = _EXPLAINS * (max(one.first_us, one.second_us) - digest.p50_us)
    still = one.first_stall_us >= enough_us, one.second_stall_us >= enough_us
    if still[0] == still[1]:
        return ""
    return digest.a if still[0] else digest.b


def _began_late(digest: Digest, one: Standout) -> str:
    """Whose own gap explains why the other end waited."""
    excess_us = abs(one.first_us - one.second_us)
    if one.first_us > one.second_us:
        host, gap_us = digest.b, one.second_gap_us - one.first_gap_us
    else:
        host, gap_us = digest.a, one.first_gap_us - one.second_gap_us
    one_sided = one.network_us < excess_us
    return host if one_sided and gap_us >= _EXPLAINS * excess_us else ""


def _count(exposures: Exposures, first: int, marks: Sequence[Mark]) -> None:
    """Into the rows of one pair from `first` on."""
    if not marks:
        return
    rows = {place.rail: first + at for at, place in enumerate(exposures.places[first:])}
    for rail, worst_us in events_on(marks, len(rows.keys() - {ALL_RAILS})):
        exposures.count(rows[rail], worst_us)


def events_on(marks: Sequence[Mark], rails: int) -> Iterator[tuple[int, float]]:
    """(rail, its longest operation) of each event of a pair that has so many rails.

    What hits most rails at once is no rail's own: its rail is `ALL_RAILS`.
    """
    for cluster in _clusters(marks):
        hit = {mark.rail for mark in cluster}
        if len(hit) > max(1.0, _MOST_RAILS * rails):
            hit = {ALL_RAILS}
        for rail in hit:
            yield rail, max(mark.us for mark in cluster)


def _clusters(marks: Sequence[Mark]) -> list[list[Mark]]:
    """Those within `ONE_EVENT_S` of the first of them are one event.

    Never a chain: a cable that holds up each fiftieth of the small operations does so every 11 ms.
    """
    clusters: list[list[Mark]] = []
    for mark in sorted(marks):
        if not clusters or mark.at_s - clusters[-1][0].at_s > ONE_EVENT_S:
            clusters.append([])
        clusters[-1].append(mark)
    return clusters
