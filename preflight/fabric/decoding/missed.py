"""What a sweep could have missed: said per endpoint, by the rule that would have condemned it.

A clean result is worth what it could have shown. From the operations and loaded seconds that really
went through an endpoint, and what the rest of the fabric was like, follows how rare a spike may be
and still be named with 99 % probability.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fabric.decoding.events import watch
from preflight.fabric.decoding.parts import ALL_RAILS
from preflight.fabric.decoding.rates import LEAST_EVENTS, LEAST_PEERS, Rates
from preflight.fabric.decoding.shifts import Shifts, of_the_wire, shifts, surprise
from preflight.fabric.decoding.usable import SHARE, number, usable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.decoding.events import Exposure
    from preflight.fabric.observed import Observed

POWER = 0.99
"""With what probability a fault of the rate or size given would have been named."""

_MOST_EVENTS = 100_000
_STEPS = 60
_ALL = 0.95  # who must lose nearly all to be named is not judged


class Missed(Struct, frozen=True, kw_only=True):
    """How sharp the look at one rail of one node was."""

    node: str
    rail: int
    operations: int
    """All-reduces of all sizes that went through it."""
    loaded_s: float
    pairs: int
    """Pairs and rounds that it was measured in."""
    one_in: float | None
    """A spike on one in so many operations would have been named; None: no rate would."""
    every_s: float | None
    """So would an event that comes once in so many seconds of load; a rarer one, maybe not."""
    slower: float | None
    """Share of its bandwidth that it could have lost and just been named; None: no loss would."""


def missed(observed: Observed) -> tuple[Missed, ...]:
    """Work it out for every rail of every node that was measured, in fleet order."""
    digests, backend = usable(observed), observed.backend
    wire = watch(digests, number(backend, "spike_us")).wire
    if not wire:
        return ()
    rates = Rates(wire, most=number(backend, "burst_nats"), effect=number(backend, "event_effect"))
    found = shifts(digests, observed.leaves, of_the_wire)
    effect = -math.log(1 - number(backend, "slow_effect"))
    model = Shifts(found, effect=effect, floor=number(backend, "bandwidth_scatter"))
    through: dict[tuple[str, int], list[Exposure]] = defaultdict(list)
    for row in wire:
        if row.place.rail != ALL_RAILS:
            through[row.place.a, row.place.rail].append(row)
            through[row.place.b, row.place.rail].append(row)
    tested = len(through) + len({(row.place.a, row.place.b, row.place.rail) for row in wire})
    threshold = math.log(tested / SHARE)
    judged = _Rule(rates, threshold, effect, model.scatter)
    every = sum(row.place.rail != ALL_RAILS for row in wire)
    return tuple(
        _missed(node, rail, through[node, rail], judged, peers=every - len(through[node, rail]))
        for node in observed.nodes
        for rail in sorted({rail for name, rail in through if name == node})
    )


class _Rule:
    """The rule that condemns, turned round; endpoints that were measured alike cost once."""

    def __init__(self, rates: Rates, threshold: float, effect: float, scatter: float) -> None:
        self._rates = rates
        self._threshold = threshold
        self._effect = effect
        self._scatter = scatter
        self._events: dict[tuple[int, int], float | None] = {}
        self._slower: dict[int, float | None] = {}

    def events(self, rows: Sequence[Exposure]) -> float | None:
        """How many events on average make it certain enough that it is named."""
        pairs = len(rows)
        each = sum(row.operations for row in rows) // pairs
        if (each, pairs) not in self._events:
            self._events[each, pairs] = self._mean(each, pairs)
        return self._events[each, pairs]

    def _mean(self, each: int, pairs: int) -> float | None:
        low, high = LEAST_EVENTS, LEAST_EVENTS
        while self._rates.gain_of(high, each, pairs) <= self._threshold:
            low, high = high, high * 2
            if high > _MOST_EVENTS:
                return None
        while low < high:
            middle = (low + high) // 2
            enough = self._rates.gain_of(middle, each, pairs) > self._threshold
            low, high = (low, middle) if enough else (middle + 1, high)
        mean = mean_for(high)
        return max(mean, self._rates.least * each * pairs)

    def slower(self, pairs: int) -> float | None:
        """The least loss of bandwidth, at this scatter, that so many pairs would prove."""
        if pairs not in self._slower:
            # A pair's own scatter works against it: two scales, nine times in ten, over the pairs.
            needed = self._threshold / pairs
            scales = _scales_for(needed) + 2.0 / math.sqrt(pairs)
            loss = 1 - math.exp(-max(self._effect, scales * self._scatter))
            self._slower[pairs] = round(loss, 3) if loss < _ALL else None
        return self._slower[pairs]


def _missed(node: str, rail: int, rows: Sequence[Exposure], rule: _Rule, *, peers: int) -> Missed:
    operations = sum(row.operations for row in rows)
    loaded_s = sum(row.loaded_s for row in rows)
    judged = peers >= LEAST_PEERS  # without peers only floors and failures count
    mean = rule.events(rows) if judged else None
    return Missed(
        node=node,
        rail=rail,
        operations=operations,
        loaded_s=round(loaded_s, 3),
        pairs=len(rows),
        one_in=None if mean is None else round(operations / mean, 1),
        every_s=None if mean is None else round(loaded_s / mean, 4),
        slower=rule.slower(len(rows)) if judged else None,
    )


def mean_for(events: int, power: float = POWER) -> float:
    """The mean of a Poisson count that reaches `events` with that probability."""
    low, high = 0.0, 10.0 + 4.0 * events
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if _reaches(events, middle) >= power else (middle, high)
    return high


def _reaches(events: int, mean: float) -> float:
    """P(X >= events) of Poisson's law, summed from its logarithms."""
    below = (n * math.log(mean) - mean - math.lgamma(n + 1) for n in range(events))
    return 1.0 - math.fsum(map(math.exp, below)) if mean > 0 else 0.0


def _scales_for(nats: float) -> float:
    """How many scales above its peers give so much evidence."""
    low, high = 0.0, 1e6
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if surprise(middle) >= nats else (middle, high)
    return high
