"""More events than the rest of the fabric had in as many operations: a rate test for bursts too.

Counts of healthy pairs scatter more than Poisson's law says where hosts are shared, so likelihoods
are divided by the dispersion that the fabric at hand shows. The yardstick of a part is all that
does not go through it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.decoding.exposures import Exposures

LEAST_RATE = 1e-6
"""Events per operation that a healthy wire is always allowed."""

LEAST_EVENTS = 3
"""No part is named for fewer: one event is a sample, not a rate."""

_STEPS = 6
_TRIMMED = 0.9
_COUNTED, _NORMAL = 2.0, 1.4826
_MANY = 400
LEAST_PEERS = 3
_DOUBT = 3.0  # one or two calm pairs are no yardstick: thrice their rate is
_ADDS = 1.0  # of the fabric's own rate: less than twice as often is nobody's fault
_FEW, _FEW_WEIGH = 2, 1.6  # where there are two rounds only, both together may still prove it
_SEEN = 0.5  # events added to what was seen: none in n operations is no proof of a rate of zero


class Rates:
    """The model of `explain` for counted events: a fault adds a rate to all that goes through."""

    def __init__(
        self,
        observed: Exposures,
        *,
        most: float = math.inf,
        effect: float = 0.0,
        never: bool = False,
    ) -> None:
        """`most`: nats that one pair in one round may prove, since events come in bursts.

        `effect`: added events per operation that anybody would mind.
        `never`: a healthy fabric has none at all (a wrong sum), so that one is proof enough.
        """
        self._most = most
        self._effect = effect
        self._never = never
        self._events = observed.events
        self._operations = [max(1, count) for count in observed.operations]
        self._known = [0.0] * len(self._events)
        """Expected, of faults accepted so far: without the healthy rate."""
        self._watched = sum(self._operations)
        self._left = float(sum(self._events))
        """Events that no accepted fault explains."""
        self._dispersion = _dispersion(self._events, self._known, self._operations)

    @property
    def base(self) -> float:
        """Events per operation in the fabric as a whole, without what accepted faults explain."""
        return max(LEAST_RATE, (max(0.0, self._left) + _SEEN) / max(1, self._watched))

    @property
    def least(self) -> float:
        """Added events per operation below which nobody is named."""
        return max(self._effect, _ADDS * self.base)

    def gain_of(self, events: int, operations: int, pairs: int) -> float:
        """What so many events, evenly over so many pairs of so many operations, would gain."""
        mean = self.base * operations
        rate = events / (pairs * operations) - self.base
        if rate <= 0:
            return 0.0
        most = self._most * (_FEW_WEIGH if pairs <= _FEW else 1.0)
        own = (events / pairs) * math.log1p(rate * operations / mean) - rate * operations
        return pairs * min(most, own / self._dispersion)

    def hot(self) -> list[int]:
        """Observations with any event."""
        return [number for number, events in enumerate(self._events) if events]

    def fit(self, through: Sequence[int]) -> tuple[float, float]:
        """The added rate, per operation, that fits best, and what assuming it gains."""
        operations, events, known = self._sums(through)
        elsewhere = self._watched - operations
        if events <= known or (elsewhere <= 0 and not self._never):
            return 0.0, 0.0
        base = LEAST_RATE
        if not self._never:
            left = max(0.0, self._left - (events - known))
            doubt = 1.0 if len(self._events) - len(through) >= LEAST_PEERS else _DOUBT
            base = max(base, doubt * (left + _SEEN) / elsewhere)
        rate = (events - known) / operations - base
        if rate <= 0:
            return 0.0, 0.0
        healthy = [
            (self._events[number], self._known[number] + base * n, n)
            for number in through
            for n in (self._operations[number],)
        ]
        for _ in range(_STEPS):
            rate = sum(y * rate * n / (mean + rate * n) for y, mean, n in healthy if y) / operations
        scatter = self._scatter(through)
        most = self._most * (_FEW_WEIGH if len(through) <= _FEW else 1.0)
        gain = sum(
            min(most, (y * math.log1p(rate * n / mean) - rate * n) / scatter)
            for y, mean, n in healthy
        )
        return rate, max(0.0, gain)

    def accept(self, through: Sequence[int], strength: float) -> None:
        """Expect its events from now on."""
        for number in through:
            added = strength * self._operations[number]
            self._known[number] += added
            self._left -= added

    def enough(self, strength: float, through: Sequence[int]) -> bool:
        """Whether it rests on more than a few events, and adds to what all have."""
        operations, events, known = self._sums(through)
        if self._never:
            return events > 0
        left = max(0.0, self._left - (events - known))
        usual = (left + _SEEN) / max(1, self._watched - operations)
        return events >= LEAST_EVENTS and strength >= max(self._effect, _ADDS * usual)

    def _sums(self, through: Sequence[int]) -> tuple[int, int, float]:
        """Operations, events, and how many of those are known faults'."""
        return (
            sum([self._operations[number] for number in through]),
            sum([self._events[number] for number in through]),
            sum([self._known[number] for number in through]),
        )

    def _scatter(self, through: Sequence[int]) -> float:
        """Dispersion of the rest; of the whole, trimmed, where that is as good and costs less."""
        if self._never:
            return 1.0
        if len(self._events) > _MANY:
            return self._dispersion
        own = set(through)
        rest = [number for number in range(len(self._events)) if number not in own]
        return _dispersion(
            [self._events[number] for number in rest],
            [self._known[number] for number in rest],
            [self._operations[number] for number in rest],
        )


def _dispersion(events: Sequence[int], known: Sequence[float], operations: Sequence[int]) -> float:
    """How much more than Poisson's law counts scatter; 1 where they follow it.

    By the median and the deviation below it where there are counts enough: nearly half of the
    pairs may touch a faulty node. Else Pearson's statistic of the calmer nine tenths.
    """
    if not events:
        return 1.0
    counts = [seen - of_faults for seen, of_faults in zip(events, known, strict=True)]
    middle = median(counts)
    if middle >= _COUNTED:
        away = _NORMAL * median([middle - count for count in counts if count <= middle])
        return max(1.0, away * away / middle)
    often = [count / n for count, n in zip(counts, operations, strict=True)]
    calmer = sorted(range(len(often)), key=often.__getitem__)
    calmer = calmer[: max(1, math.ceil(_TRIMMED * len(calmer)))]
    base = (sum([counts[row] for row in calmer]) + _SEEN) / sum([operations[row] for row in calmer])
    base = max(LEAST_RATE, base)
    total = 0.0
    for row in calmer:
        healthy = base * operations[row]
        total += (counts[row] - healthy) ** 2 / max(healthy + known[row], _SEEN)
    return max(1.0, total / max(1, len(calmer) - 1))
