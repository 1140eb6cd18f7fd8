"""Spikes and late starts: what stood out is an event, told apart by whose clock shows it.

What both ends saw is the network's. Where only one end waited, the other end's own gap before the
operation says whether that host began late; if it does not, the delay was on the wire: a loss in
one direction looks one-sided too, at the end that waits for the packet.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from preflight.fabric.decoding.parts import ALL_RAILS, Place
from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from preflight.fabric.digest import Digest, Standout
    from preflight.fabric.samples import Phase

    Kind = tuple[int, Phase]
    _Met = tuple[str, str, int]

MEDIANS = 20.0
"""A spike takes at least so many of its peers' medians."""

ONE_EVENT_S = 0.05
"""Exceedances that are nearer in time, over sizes and rails of a pair, are one event."""

_EXPLAINS = 0.5
"""Share of the excess that a host's own gap must account for to make that host late."""

_MOST_RAILS = 0.5
"""An event on more of a pair's rails than this share is the node's, not each rail's."""


class Exposure(NamedTuple):
    """How much one pair on one rail in one round was watched, and how often something happened."""

    place: Place
    operations: int
    loaded_s: float
    events: int
    worst_us: float


class Watched(NamedTuple):
    """A whole fabric: events of the wire per pair, late starts per host."""

    wire: list[Exposure]
    late: list[Exposure]
    """`place.b` is empty: a late start is one host's own."""
    limits_us: dict[Kind, float]
    """From which time on an operation of that size is a spike."""


class _Mark(NamedTuple):
    """One operation that took too long."""

    at_s: float
    rail: int
    us: float


def watch(digests: Sequence[Digest], least_us: float) -> Watched:
    """Count events; `least_us`: what is never a spike on that kind of network."""
    limits = _limits(digests, least_us)
    loads: dict[_Met, dict[int, tuple[int, float]]] = defaultdict(dict)
    marks: dict[_Met, dict[str, list[_Mark]]] = {}
    for digest in digests:
        met = digest.a, digest.b, digest.round
        load = loads[met]
        operations, seconds = load.get(digest.rail, (0, 0.0))
        load[digest.rail] = operations + digest.operations, seconds + digest.loaded_s
        if digest.standouts:
            for host, mark in _marks(digest, limits):
                marks.setdefault(met, {}).setdefault(host, []).append(mark)
    wire: list[Exposure] = []
    late: list[Exposure] = []
    for met, load in loads.items():
        a, b, _ = met
        own = marks.get(met, {})
        wire += _exposures(a, b, load, own.get("", ()))
        late += _exposures(a, "", load, own.get(a, ()))
        late += _exposures(b, "", load, own.get(b, ()))
    return Watched(wire, late, limits)


def _limits(digests: Iterable[Digest], least_us: float) -> dict[Kind, float]:
    typical: dict[Kind, list[float]] = defaultdict(list)
    for digest in digests:
        typical[digest.size_bytes, digest.phase].append(digest.p50_us)
    return {kind: max(least_us, MEDIANS * median(times)) for kind, times in typical.items()}


def _marks(digest: Digest, limits: Mapping[Kind, float]) -> Iterator[tuple[str, _Mark]]:
    """Exceedances of one size, each with the host that began late, or nobody for the wire."""
    limit_us = limits[digest.size_bytes, digest.phase]
    for one in digest.standouts:
        longest = max(one.first_us, one.second_us)
        if longest > limit_us:
            yield _late(digest, one), _Mark(one.at_s, digest.rail, longest)


def _late(digest: Digest, one: Standout) -> str:
    """Whose own gap explains why the other end waited; nobody's: it was the wire."""
    excess_us = abs(one.first_us - one.second_us)
    if one.first_us > one.second_us:
        host, gap_us = digest.b, one.second_gap_us - one.first_gap_us
    else:
        host, gap_us = digest.a, one.first_gap_us - one.second_gap_us
    one_sided = one.network_us < excess_us
    return host if one_sided and gap_us >= _EXPLAINS * excess_us else ""


def _exposures(
    a: str, b: str, load: Mapping[int, tuple[int, float]], marks: Sequence[_Mark]
) -> Iterator[Exposure]:
    """One per rail; and one for all rails together, where events hit most of them at once."""
    counts: dict[int, int] = defaultdict(int)
    worst: dict[int, float] = defaultdict(float)
    for cluster in _clusters(marks):
        rails = {mark.rail for mark in cluster}
        wide = len(rails) > max(1.0, _MOST_RAILS * len(load))
        for rail in (ALL_RAILS,) if wide else rails:
            counts[rail] += 1
            worst[rail] = max(worst[rail], *(mark.us for mark in cluster))
    for rail, (operations, seconds) in load.items():
        yield Exposure(Place(a, b, rail), operations, seconds, counts[rail], worst[rail])
    if len(load) > 1:
        operations = max(one for one, _ in load.values())
        seconds = max(one for _, one in load.values())
        place = Place(a, b, ALL_RAILS)
        yield Exposure(place, operations, seconds, counts[ALL_RAILS], worst[ALL_RAILS])


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
