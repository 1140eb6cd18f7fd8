"""What a sweep could have missed, and the heatmap's values of each pair, by the rules of blame.

A clean result is worth as much as the faults it would have shown. The operations and loaded seconds
of an endpoint, and the scatter of the rest of the fabric, say how rare a spike may be and still be
named with 99 % probability.

It uses the same limits, events, log times and scatter as blame: a heatmap by other rules would
point at good nodes on busy machines.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.statistics import grouped
from preflight.core.thresholds import SHIPPED, Thresholds
from preflight.fabric.decoding.parts import ALL_RAILS, SYMPTOM_SHARE, read_meetings, usable
from preflight.fabric.decoding.rare_events import (
    LEAST_EVENTS,
    LEAST_PEERS,
    ONE_EVENT_S,
    count_events,
    rates_of,
)
from preflight.fabric.decoding.shifts import Shifts, scales_of, shifts_of
from preflight.fabric.samples import MeetingKey, gc_paused
from preflight.facts.basics import Count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from preflight.fabric.decoding.parts import Exposures, Meetings, SizePhase
    from preflight.fabric.decoding.rare_events import Rates
    from preflight.fabric.observed import Digest, Observed

    Endpoint = tuple[str, int]


POWER = 0.99
"""The probability with which a fault of the given rate or size would have been named."""

_MOST_EVENTS = 100_000
_STEPS = 60
_TAIL = 12.0  # standard deviations below the mean: beyond, probabilities are negligible
_LARGEST_LOSS = 0.95  # a rail that must lose nearly all bandwidth to be named is not judged


class SensitivitySizeRow(Struct, frozen=True, kw_only=True):
    """The same for spikes on operations of one size only."""

    size_bytes: Count
    operations: Count
    loaded_s: float
    over_us: float
    """An operation of that size is a spike if it takes longer."""
    one_in: float | None
    every_s: float | None


class SensitivityRow(Struct, frozen=True, kw_only=True):
    """How sensitive the test of one rail was; null: no rate or loss would have been found."""

    node: str
    rail: Count
    operations: Count
    """All-reduces of all sizes that went through it."""
    loaded_s: float
    pairs: Count
    """Pairs and rounds that it was measured in."""
    one_in: float | None
    """A spike on one in so many operations would have been named; None: no rate would."""
    every_s: float | None
    """So would an event that comes once in so many seconds of load; a rarer one would not."""
    slower: float | None
    """The least loss of bandwidth, as a share, for which it would be named; None: none would."""
    events: Count | None = None
    """How many spikes would have been found; null: the others had too many to tell them apart."""
    sizes: tuple[SensitivitySizeRow, ...] = ()


@gc_paused()
def sensitivity(
    observed: Observed, most: int | None = None, thresholds: Thresholds = SHIPPED
) -> tuple[SensitivityRow, ...]:
    """Return the sensitivity for every rail of every measured node, the least tested first.

    `most`: at most so many.
    """
    meetings, limit = read_meetings(observed), thresholds.for_backend(observed.backend)
    counts = count_events(meetings, limit("spike_us"))
    wire = counts.wire
    if not wire.places:
        return ()
    rates, model = rates_of(wire, limit), shifts_of(meetings, observed, "slow", limit)
    measured = [row for row, place in enumerate(wire.places) if place.rail != ALL_RAILS]
    # A pair loads both its ends.
    through = grouped(
        ((name, wire.places[row].rail), row) for row in measured for name in wire.places[row][:2]
    )
    threshold = math.log((len(through) + len(set(wire.places))) / SYMPTOM_SHARE)
    rule = _BlameRule(rates, threshold, model)
    order = {name: index for index, name in enumerate(observed.nodes)}
    rail_rows = [
        _row(endpoint, wire, through[endpoint], rule, peers=len(measured) - len(through[endpoint]))
        for endpoint in sorted(through, key=lambda endpoint: (order[endpoint[0]], endpoint))
    ]
    rail_rows.sort(key=lambda row: row.one_in if row.one_in is not None else 0.0)
    return _by_size(rail_rows[:most], usable(observed), counts.limits_us, rates.least)


class _BlameRule:
    """The rule of blame, inverted; endpoints with equal load are computed once."""

    def __init__(self, rates: Rates, threshold: float, model: Shifts) -> None:
        self._rates = rates
        self._threshold = threshold
        self._model = model
        self.least = rates.least
        self.events = cache(self._events_needed)
        self.slower = cache(self._least_loss)

    def _events_needed(self, operations: int, pairs: int) -> int | None:
        """Return how many events in so many operations of each pair name the endpoint."""
        counts = range(LEAST_EVENTS, _MOST_EVENTS)
        gain = partial(self._rates.gain_of, operations=operations, pairs=pairs)
        place = bisect_right(counts, self._threshold, key=gain)
        return counts[place] if place < len(counts) else None

    def _least_loss(self, pairs: int) -> float | None:
        """The least loss of bandwidth, at this scatter, that so many pairs would prove."""
        # A pair's own scatter hides it: two scales, nine times in ten, over the pairs.
        scales = scales_of(self._threshold / pairs) + 2.0 / math.sqrt(pairs)
        loss = 1 - math.exp(-max(self._model.effect, scales * self._model.scatter))
        return round(loss, 3) if loss < _LARGEST_LOSS else None


def _row(
    endpoint: Endpoint, wire: Exposures, rows: Sequence[int], rule: _BlameRule, *, peers: int
) -> SensitivityRow:
    """Judge the test of one endpoint; `rows`: what went through it, of each pair and round."""
    operations, pairs = sum(wire.operations[row] for row in rows), len(rows)
    loads_s = [wire.loaded_s[row] for row in rows]
    loaded_s = sum(loads_s)
    has_peers = peers >= LEAST_PEERS  # without peers only floors and failures count
    events = rule.events(operations // pairs, pairs) if has_peers else None
    mean = _mean_that_matters(events, loads_s, rule.least * operations)
    return SensitivityRow(
        node=endpoint[0],
        rail=endpoint[1],
        operations=operations,
        loaded_s=round(loaded_s, 3),
        pairs=pairs,
        one_in=None if mean is None else round(operations / mean, 1),
        every_s=None if mean is None else round(loaded_s / mean, 4),
        slower=rule.slower(pairs) if has_peers else None,
        events=events,
    )


def _mean_that_matters(events: int | None, loads_s: Iterable[float], least: float) -> float | None:
    """Return the mean number of events that shows so many, and at least `least`."""
    mean = None if events is None else mean_for(events, _moments(loads_s))
    return None if mean is None else max(mean, least)


def _by_size(
    rail_rows: Sequence[SensitivityRow],
    digests: Iterable[Digest],
    limits_us: Mapping[SizePhase, float],
    least: float,
) -> tuple[SensitivityRow, ...]:
    """Add the sensitivity to spikes at each single size.

    `least`: added events per operation, of all sizes, below which no part is named.
    """
    row_of = {(rail_row.node, rail_row.rail): rail_row for rail_row in rail_rows}
    digests_of = grouped(
        ((name, digest.rail, digest.size_bytes), digest)
        for digest in digests
        for name in digest.nodes
        if (name, digest.rail) in row_of
    )
    sizes = grouped(
        ((node, rail), _at_size(row_of[node, rail], rows, limits_us, least))
        for (node, rail, _), rows in sorted(digests_of.items())
    )
    return tuple(
        replace(rail_row, sizes=tuple(sizes[endpoint])) for endpoint, rail_row in row_of.items()
    )


def _at_size(
    rail_row: SensitivityRow,
    rows: Sequence[Digest],
    limits_us: Mapping[SizePhase, float],
    least: float,
) -> SensitivitySizeRow:
    operations = sum(row.operations for row in rows)
    loaded_s = sum(row.loaded_s for row in rows)
    over_us = max(limits_us[row.size_bytes, row.phase] for row in rows)
    loads_s = (row.loaded_s for row in rows)
    mean = _mean_that_matters(rail_row.events, loads_s, least * rail_row.operations)
    shows = mean is not None and mean <= operations  # more than all of them cannot be spikes
    return SensitivitySizeRow(
        size_bytes=rows[0].size_bytes,
        operations=operations,
        loaded_s=round(loaded_s, 4),
        over_us=round(float(over_us), 1),
        one_in=round(operations / mean, 1) if mean and shows else None,
        every_s=round(loaded_s / mean, 5) if mean and shows else None,
    )


def _moments(loaded_s: Iterable[float]) -> int:
    """Return in how many moments events count separately: those near in time are one.

    A Poisson process of rate r over T seconds shows r T exp(-r t) clusters that are more than t
    apart, never more than T / (e t); slots of e t that hold any event are never more than that.
    """
    moments = sum(max(1, int(seconds / (math.e * ONE_EVENT_S))) for seconds in loaded_s)
    step: int = 10 ** max(0, len(str(moments)) - 2)  # endpoints that are nearly alike cost once
    return moments // step * step


@cache
def mean_for(events: int, moments: int) -> float | None:
    """Return the mean number of events that shows at least `events` with that probability.

    Events follow Poisson's law; in each of the `moments` one counts. None: too few moments.
    """
    if moments < events:
        return None
    low, high = 0.0, 10.0 + 4.0 * events
    while _probability(events, moments, high) < POWER:
        high *= 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        enough = _probability(events, moments, middle) >= POWER
        low, high = (low, middle) if enough else (middle, high)
    return high


def _probability(events: int, moments: int, mean: float) -> float:
    """P(X >= events), X binomial over moments that each hold an event with 1 - exp(-mean / n)."""
    none = -mean / moments
    any_ = math.log(-math.expm1(none))
    lead = math.lgamma(moments + 1)
    usual = -moments * math.expm1(none)
    first = max(0, int(usual - _TAIL * math.sqrt(usual + 1)))
    below = (
        lead - math.lgamma(k + 1) - math.lgamma(moments - k + 1) + k * any_ + (moments - k) * none
        for k in range(first, events)
    )
    return 1.0 - math.fsum(map(math.exp, below))


class Events(NamedTuple):
    """Events of one pair on one rail in one round; those on most rails count for each rail."""

    wire: int
    late: int
    operations: int
    longest_us: float
    """The longest of the operations in an event."""


class Slower(NamedTuple):
    """Log times by key, and the least excess that stands out of good pairs' scatter."""

    logs: dict[MeetingKey, float]
    least_excess: float


class HeatmapValues(NamedTuple):
    """All values that the heatmap shows as colours."""

    events: dict[MeetingKey, Events]
    scatter: float
    """Variance of good pairs' counts, in units of Poisson's law."""
    wire: Slower
    latency: Slower


def heatmap_values(observed: Observed, thresholds: Thresholds = SHIPPED) -> HeatmapValues:
    """Return each pair's values, by the same rules as blame."""
    meetings, limit = read_meetings(observed), thresholds.for_backend(observed.backend)
    keys = [(*place, turn) for place, turn in zip(meetings.places, meetings.rounds, strict=True)]
    return HeatmapValues(
        events=_events(meetings, keys, limit("spike_us")),
        scatter=limit("event_scatter"),
        wire=_slower(keys, shifts_of(meetings, observed, "slow", limit)),
        latency=_slower(keys, shifts_of(meetings, observed, "latency", limit)),
    )


def _events(
    meetings: Meetings, keys: Sequence[MeetingKey], least_us: float
) -> dict[MeetingKey, Events]:
    """Return each pair's events, from the rows that `count_events` adds pair by pair.

    Events on most of a pair's rails at once are in its last row.
    """
    wire, late, _ = count_events(meetings, least_us)
    by_key: dict[MeetingKey, Events] = {}
    first = 0
    for rows in meetings.by_pair:
        width = len(rows) + (len(rows) > 1)
        for rail_offset, row in enumerate(rows):
            offsets = {rail_offset, width - 1}
            wire_rows = [first + offset for offset in offsets]
            # Each pair has the rows of its first host, then those of its second.
            late_rows = [2 * first + host * width + offset for host in (0, 1) for offset in offsets]
            by_key[keys[row]] = Events(
                wire=sum(wire.events[at] for at in wire_rows),
                late=sum(late.events[at] for at in late_rows),
                operations=meetings.operations[row],
                longest_us=max(
                    *(wire.worst_us[at] for at in wire_rows),
                    *(late.worst_us[at] for at in late_rows),
                ),
            )
        first += width
    return by_key


def _slower(keys: Sequence[MeetingKey], model: Shifts) -> Slower:
    rows = zip(model.timed.rows, model.timed.logs, strict=True)
    return Slower({keys[row]: log for row, log in rows}, model.stands_out)
