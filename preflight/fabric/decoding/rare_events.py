"""Spikes and late starts: which operations stand out, and how often that is chance.

What both ends saw is the network's. Where only one end waited, the other end's own gap before the
operation says whether that host began late; if it does not, the delay was on the wire: a loss in
one direction looks one-sided too, at the end that waits for the packet. A host that was frozen in
the middle of an operation is long at both ends: its supervisor saw it stand still.

On shared hosts the counts of good pairs scatter more than Poisson's law says, so likelihoods are
divided by the dispersion of this fabric. A part is compared with all that does not go through it.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from preflight.core.statistics import SIGMA_MAD, median
from preflight.fabric.decoding.greedy_search import Model
from preflight.fabric.decoding.parts import ALL_RAILS, Exposures, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from preflight.fabric.decoding.parts import Meetings, SizePhase
    from preflight.fabric.observed import Digest, Standout


SPIKE_MEDIANS = 20.0
"""A spike lasts at least so many of its peers' medians."""

ONE_EVENT_S = 0.05
"""Spikes within so long, over sizes and rails of a pair, are one event."""

_EXPLAINS = 0.5
"""Share of the excess that a host's own gap must account for to make that host late."""

_MOST_RAILS = 0.5
"""An event on more of a pair's rails than this share is the node's, not each rail's."""


class EventCounts(NamedTuple):
    """A whole fabric: events of the wire per pair, late starts per host."""

    wire: Exposures
    late: Exposures
    """`place.b` is empty: a late start belongs to one host."""
    limits_us: dict[SizePhase, float]
    """By size: an operation that takes longer is a spike."""


class Spike(NamedTuple):
    """One operation that took too long."""

    at_s: float
    rail: int
    duration_us: float


def count_events(meetings: Meetings, least_us: float) -> EventCounts:
    """Count events; `least_us`: shorter operations are never spikes on that network."""
    limits_us = {
        kind: max(least_us, SPIKE_MEDIANS * median(column.p50_us))
        for kind, column in meetings.columns.items()
    }
    spikes = _spikes(meetings, limits_us)
    counts = EventCounts(Exposures(), Exposures(), limits_us)
    host_place = cache(Place)  # the same in each round
    for rows in meetings.by_pair:
        a, b, _ = meetings.places[rows[0]]
        places = [meetings.places[row] for row in rows]
        operations = [meetings.operations[row] for row in rows]
        loaded_s = [meetings.loaded_s[row] for row in rows]
        if len(rows) > 1:
            places.append(Place(a, b, ALL_RAILS))
            operations.append(max(operations))
            loaded_s.append(max(loaded_s))
        found = [spike for row in rows for spike in spikes.get(row, ())]
        for host, exposures in (("", counts.wire), (a, counts.late), (b, counts.late)):
            where = [host_place(host, "", place.rail) for place in places] if host else places
            first = exposures.add(where, operations, loaded_s)
            _count(exposures, first, [spike for late, spike in found if late == host])
    return counts


def _spikes(
    meetings: Meetings, limits_us: Mapping[SizePhase, float]
) -> dict[int, list[tuple[str, Spike]]]:
    """Return spikes by row, each with the host that began late, or "" for the wire."""
    spikes: dict[int, list[tuple[str, Spike]]] = {}
    for row, digest in meetings.outlying:
        limit_us = limits_us[digest.size_bytes, digest.phase]
        for standout in digest.standouts:
            longest = max(standout.first_us, standout.second_us)
            if longest > limit_us:
                spike = Spike(standout.at_s, digest.rail, longest)
                late = _began_late(digest, standout) or _stood_still(digest, standout)
                spikes.setdefault(row, []).append((late, spike))
    return spikes


def _stood_still(digest: Digest, standout: Standout) -> str:
    """Return the end whose standstill explains it; if both stood still, the machine is shared."""
    enough_us = _EXPLAINS * (max(standout.first_us, standout.second_us) - digest.p50_us)
    explains = standout.first_stall_us >= enough_us, standout.second_stall_us >= enough_us
    if explains[0] == explains[1]:
        return ""
    return digest.a if explains[0] else digest.b


def _began_late(digest: Digest, standout: Standout) -> str:
    """Return the end whose own gap explains why the other end waited."""
    excess_us = abs(standout.first_us - standout.second_us)
    if standout.first_us > standout.second_us:
        host, gap_us = digest.b, standout.second_gap_us - standout.first_gap_us
    else:
        host, gap_us = digest.a, standout.first_gap_us - standout.second_gap_us
    one_sided = standout.network_us < excess_us
    return host if one_sided and gap_us >= _EXPLAINS * excess_us else ""


def _count(exposures: Exposures, first: int, spikes: Sequence[Spike]) -> None:
    """Count spikes in a pair's rows from `first` on; those on most rails at once in the last."""
    if not spikes:
        return
    rows = {place.rail: row for row, place in enumerate(exposures.places[first:], first)}
    rails = len(rows.keys() - {ALL_RAILS})
    for cluster in _clusters(spikes):
        hit_rails = {spike.rail for spike in cluster}
        if len(hit_rails) > max(1.0, _MOST_RAILS * rails):  # not one rail's
            hit_rails = {ALL_RAILS}
        for rail in hit_rails:
            exposures.count(rows[rail], max(spike.duration_us for spike in cluster))


def _clusters(spikes: Sequence[Spike]) -> list[list[Spike]]:
    """Group spikes within `ONE_EVENT_S` of the first of a group.

    Never a chain: a cable that delays every fiftieth small operation does so every 11 ms.
    """
    clusters: list[list[Spike]] = []
    for spike in sorted(spikes):
        if not clusters or spike.at_s - clusters[-1][0].at_s > ONE_EVENT_S:
            clusters.append([])
        clusters[-1].append(spike)
    return clusters


LEAST_RATE = 1e-6
"""Events per operation that a good wire may always have."""

LEAST_EVENTS = 3
"""No part is named for fewer: one event is a sample, not a rate."""

_STEPS = 6
_CALMEST_SHARE = 0.9
_LEAST_MEDIAN = 2.0
_MANY = 400
_FEW_PEERS = 10  # the median of fewer does not show their scatter
LEAST_PEERS = 3
_FEW_PEERS_FACTOR = 3.0  # one or two calm pairs are a weak comparison: use three times their rate
_LEAST_ADDED = 1.0  # of the fabric's own rate: less than twice as often is no fault
_FEW_ROWS, _FEW_ROWS_FACTOR = 2, 1.6  # with only two rows, both together may still prove it
_PRIOR = 0.5  # events added to those counted: none in n operations is no proof of a rate of zero


def rates_of(counted: Exposures, limit: Callable[[str], float], *, alone: bool = False) -> Rates:
    """Return the model with the limits of a backend."""
    return Rates(
        counted,
        most=limit("burst_nats"),
        effect=limit("event_effect"),
        usual=limit("usual_events"),
        scatter=limit("event_scatter"),
        alone=alone,
    )


class _Count(NamedTuple):
    """The sums over some rows."""

    operations: int
    events: float
    """Without the events of accepted faults."""
    rows: int = 0


class Rates(Model):
    """The model of `explain` for counted events: a fault adds a rate to all that goes through."""

    def __init__(
        self,
        observed: Exposures,
        *,
        most: float = math.inf,
        effect: float = 0.0,
        usual: float = LEAST_RATE,
        scatter: float = 1.0,
        alone: bool = False,
        never: bool = False,
    ) -> None:
        """`most`: nats that one pair in one round may prove, since events come in bursts.

        `effect`: added events per operation that matter.
        `usual`: events per operation that good fabrics of this kind are known to have.
        `scatter`: how much more than Poisson's law counts of good pairs are known to scatter.
        `alone`: the part's own clock proves an event; peers only show how usual it is.
        `never`: a good fabric has no such event (a wrong sum), so that one is proof.
        """
        self._most = most
        self._effect = effect
        self._least_scatter = scatter
        self._usual = max(LEAST_RATE, usual)
        self._least_peers = 1 if alone or never else LEAST_PEERS
        self._never = never
        self._events = observed.events
        self._operations = [max(1, count) for count in observed.operations]
        self._explained = [0.0] * len(self._events)
        """Events expected from accepted faults, without the usual rate."""
        self._total = sum(self._operations)
        self._unexplained = float(sum(self._events))
        """Events that no accepted fault explains."""
        self._dispersion = max(scatter, _dispersion(self._rows(range(len(self._events)))))

    @property
    def base(self) -> float:
        """Events per operation in the whole fabric, without those of accepted faults."""
        return max(LEAST_RATE, (max(0.0, self._unexplained) + _PRIOR) / max(1, self._total))

    @property
    def least(self) -> float:
        """Added events per operation below which no part is named."""
        return max(self._effect, _LEAST_ADDED * self.base)

    def gain_of(self, events: int, operations: int, pairs: int) -> float:
        """Return the gain of so many events, spread evenly over pairs with so many operations."""
        mean = self.base * operations
        rate = events / (pairs * operations) - self.base
        if rate <= 0:
            return 0.0
        gain = (events / pairs) * math.log1p(rate * operations / mean) - rate * operations
        rest = self._total - pairs * operations
        beyond = self._beyond_chance(
            _Count(pairs * operations, events), _Count(rest, self.base * rest)
        )
        return min(pairs * min(self._most_nats(pairs), gain / self._dispersion), beyond)

    def _most_nats(self, rows: int) -> float:
        """The most nats that each of so many rows may prove."""
        return self._most * (_FEW_ROWS_FACTOR if rows <= _FEW_ROWS else 1.0)

    def outliers(self) -> list[int]:
        """Observations with any event."""
        return [row for row, events in enumerate(self._events) if events]

    def fit(self, through: Sequence[int]) -> tuple[float, float]:
        """Return the added rate per operation that fits best, and its gain."""
        return self._fit(through, self._most_nats(len(through)))

    def uncapped_gain(self, through: Sequence[int]) -> float:
        """Return the gain if events did not come in bursts."""
        return self._fit(through, math.inf)[1]

    def _fit(self, through: Sequence[int], most: float) -> tuple[float, float]:
        own, rest = self._split(through)
        if own.events <= 0 or (not self._never and rest.rows < self._least_peers):
            return 0.0, 0.0
        base = self._base(rest)
        rate = own.events / own.operations - base
        if rate <= 0:
            return 0.0, 0.0
        healthy = [
            (self._events[row], self._explained[row] + base * n, n)
            for row in through
            for n in (self._operations[row],)
        ]
        for _ in range(_STEPS):
            rate = (
                sum(y * rate * n / (mean + rate * n) for y, mean, n in healthy if y)
                / own.operations
            )
        scatter = self._scatter(through)
        gain = sum(
            min(most, (y * math.log1p(rate * n / mean) - rate * n) / scatter)
            for y, mean, n in healthy
        )
        if not self._never:
            gain = min(gain, self._beyond_chance(own, rest))
        return rate, max(0.0, gain)

    def fits_fault(self, rows: Sequence[int], strength: float, through: Sequence[int]) -> bool:
        """Whether these rows fit a fault of that strength better than none."""
        base = self._base(self._split(through)[1])
        gain = 0.0
        for row in rows:
            added = strength * self._operations[row]
            mean = self._explained[row] + base * self._operations[row]
            gain += self._events[row] * math.log1p(added / mean) - added
        return gain > 0

    def accept(self, through: Sequence[int], strength: float) -> None:
        """Expect the fault's events from now on."""
        for row in through:
            added = strength * self._operations[row]
            self._explained[row] += added
            self._unexplained -= added

    def matters(self, strength: float, through: Sequence[int]) -> bool:
        """Whether it has more than a few events, and clearly more than all others."""
        events = sum([self._events[row] for row in through])
        if self._never:
            return events > 0
        _, rest = self._split(through)
        usual = (rest.events + _PRIOR) / max(1, rest.operations)
        return events >= LEAST_EVENTS and strength >= max(self._effect, _LEAST_ADDED * usual)

    def _base(self, rest: _Count) -> float:
        """Return the usual rate, from the rest of the fabric."""
        if self._never or not rest.operations:
            return LEAST_RATE
        factor = 1.0 if rest.rows >= LEAST_PEERS else _FEW_PEERS_FACTOR
        return max(LEAST_RATE, factor * (rest.events + _PRIOR) / rest.operations)

    def _split(self, through: Sequence[int]) -> tuple[_Count, _Count]:
        """Return what went through a part, and the rest without what `exclude` names."""
        own = self._count(through)
        excluded = self._count(list(self._excluded.difference(through)))
        return own, _Count(
            self._total - own.operations - excluded.operations,
            max(0.0, self._unexplained - own.events - excluded.events),
            len(self._events) - own.rows - excluded.rows,
        )

    def _count(self, rows: Sequence[int]) -> _Count:
        return _Count(
            sum([self._operations[row] for row in rows]),
            sum([self._events[row] for row in rows]) - sum([self._explained[row] for row in rows]),
            len(rows),
        )

    def _beyond_chance(self, own: _Count, rest: _Count) -> float:
        """Return the nats by which two rates fit better than one; few calm pairs prove nothing."""
        own_rate, rest_rate = own.events / own.operations, rest.events / rest.operations
        together = (own.events + rest.events) / (own.operations + rest.operations)
        common = min(together, max(self._usual, rest_rate))
        nats = own.events * math.log(own_rate / common) - (own_rate - common) * own.operations
        nats += rest.events * math.log(rest_rate / common) if rest_rate else 0.0
        return nats - (rest_rate - common) * rest.operations

    def _scatter(self, through: Sequence[int]) -> float:
        """Return the dispersion of the rest, or the trimmed whole's if as good and cheaper."""
        if self._never:
            return 1.0
        if len(self._events) > _MANY:
            return self._dispersion
        excluded = self._excluded.union(through)
        own = self._rows(through)
        rest = self._rows([row for row in range(len(self._events)) if row not in excluded])
        if len(rest) >= _FEW_PEERS:
            return max(self._least_scatter, _dispersion(rest))
        degrees = max(1, len(rest) + len(own) - 2)
        return max(self._least_scatter, (_pearson(rest) + _pearson(own)) / degrees)

    def _rows(self, rows: Iterable[int]) -> list[_Row]:
        return [_Row(self._events[at], self._explained[at], self._operations[at]) for at in rows]


class _Row(NamedTuple):
    """One observation: its events, those expected from accepted faults, and its operations."""

    events: int
    explained: float
    operations: int

    @property
    def unexplained(self) -> float:
        """The events that no accepted fault explains."""
        return self.events - self.explained


def _dispersion(rows: Sequence[_Row]) -> float:
    """Return how much more than Poisson's law counts scatter; 1 if they follow it.

    With enough counts it uses the median and the deviation below it, as nearly half of the pairs
    may touch a faulty node; else Pearson's statistic of the calmest nine tenths, per degree of
    freedom, as in a quasi-Poisson regression.
    """
    if not rows:
        return 1.0
    counts = [row.unexplained for row in rows]
    middle = median(counts)
    if middle >= _LEAST_MEDIAN:
        deviation = SIGMA_MAD * median([middle - count for count in counts if count <= middle])
        return max(1.0, deviation * deviation / middle)
    calmer = sorted(rows, key=lambda row: row.unexplained / row.operations)
    calmer = calmer[: max(1, math.ceil(_CALMEST_SHARE * len(calmer)))]
    return max(1.0, _pearson(calmer, prior=_PRIOR) / max(1, len(calmer) - 1))


def _pearson(rows: Sequence[_Row], prior: float = 0.0) -> float:
    """Return Pearson's X2: squared distances from one common rate, in units of Poisson's variance.

    `prior`: events added to those of which the rate is computed.
    """
    operations = sum(row.operations for row in rows)
    rate = (sum(row.unexplained for row in rows) + prior) / max(1, operations)
    total = 0.0
    for row in rows:
        usual = max(LEAST_RATE, rate) * row.operations
        total += (row.unexplained - usual) ** 2 / max(usual + row.explained, _PRIOR)
    return total
