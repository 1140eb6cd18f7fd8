"""More events than the rest of the fabric had in as many operations: a rate test for bursts too.

Counts of healthy pairs scatter more than Poisson's law says where hosts are shared, so likelihoods
are divided by the dispersion that the fabric at hand shows. The yardstick of a part is all that
does not go through it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from preflight.fabric.decoding.events import Exposure

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


class _Row(NamedTuple):
    events: int
    known: float
    """Expected, of faults accepted so far: without the healthy rate."""
    operations: int


class Rates:
    """The model of `explain` for counted events: a fault adds a rate to all that goes through."""

    def __init__(
        self,
        observed: Sequence[Exposure],
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
        self._rows = [_Row(one.events, 0.0, max(1, one.operations)) for one in observed]
        self._operations = sum(row.operations for row in self._rows)
        self._left = float(sum(row.events for row in self._rows))
        """Events that no accepted fault explains."""
        self._dispersion = _dispersion(self._rows)

    @property
    def base(self) -> float:
        """Events per operation in the fabric as a whole, without what accepted faults explain."""
        return max(LEAST_RATE, (max(0.0, self._left) + _SEEN) / max(1, self._operations))

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
        return [number for number, row in enumerate(self._rows) if row.events]

    def fit(self, through: Sequence[int]) -> tuple[float, float]:
        """The added rate, per operation, that fits best, and what assuming it gains."""
        rows = [self._rows[number] for number in through]
        operations = sum(row.operations for row in rows)
        elsewhere = self._operations - operations
        events = sum(row.events for row in rows)
        known = sum(row.known for row in rows)
        if events <= known or (elsewhere <= 0 and not self._never):
            return 0.0, 0.0
        base = LEAST_RATE
        if not self._never:
            left = max(0.0, self._left - (events - known))
            doubt = 1.0 if len(self._rows) - len(rows) >= LEAST_PEERS else _DOUBT
            base = max(base, doubt * (left + _SEEN) / elsewhere)
        rate = (events - known) / operations - base
        if rate <= 0:
            return 0.0, 0.0
        healthy = [(row.events, row.known + base * row.operations, row.operations) for row in rows]
        for _ in range(_STEPS):
            rate = sum(y * rate * n / (mean + rate * n) for y, mean, n in healthy if y) / operations
        scatter = self._scatter(through)
        most = self._most * (_FEW_WEIGH if len(rows) <= _FEW else 1.0)
        gain = sum(
            min(most, (y * math.log1p(rate * n / mean) - rate * n) / scatter)
            for y, mean, n in healthy
        )
        return rate, max(0.0, gain)

    def accept(self, through: Sequence[int], strength: float) -> None:
        """Expect its events from now on."""
        for number in through:
            row = self._rows[number]
            added = strength * row.operations
            self._rows[number] = row._replace(known=row.known + added)
            self._left -= added

    def enough(self, strength: float, through: Sequence[int]) -> bool:
        """Whether it rests on more than a few events, and adds to what all have."""
        rows = [self._rows[number] for number in through]
        events = sum(row.events for row in rows)
        if self._never:
            return events > 0
        elsewhere = self._operations - sum(row.operations for row in rows)
        left = max(0.0, self._left - sum(row.events - row.known for row in rows))
        usual = (left + _SEEN) / max(1, elsewhere)
        return events >= LEAST_EVENTS and strength >= max(self._effect, _ADDS * usual)

    def _scatter(self, through: Sequence[int]) -> float:
        """Dispersion of the rest; of the whole, trimmed, where that is as good and costs less."""
        if self._never:
            return 1.0
        if len(self._rows) > _MANY:
            return self._dispersion
        own = set(through)
        return _dispersion(row for number, row in enumerate(self._rows) if number not in own)


def _dispersion(rows: Iterable[_Row]) -> float:
    """How much more than Poisson's law counts scatter; 1 where they follow it.

    By the median and the deviation below it where there are counts enough: nearly half of the
    pairs may touch a faulty node. Else Pearson's statistic of the calmer nine tenths.
    """
    kept = sorted(rows, key=lambda row: (row.events - row.known) / row.operations)
    if not kept:
        return 1.0
    counts = [row.events - row.known for row in kept]
    middle = median(counts)
    if middle >= _COUNTED:
        away = _NORMAL * median([middle - count for count in counts if count <= middle])
        return max(1.0, away * away / middle)
    kept = kept[: max(1, math.ceil(_TRIMMED * len(kept)))]
    operations = sum(row.operations for row in kept)
    base = max(LEAST_RATE, (sum(row.events - row.known for row in kept) + _SEEN) / operations)
    total = sum(
        (row.events - row.known - base * row.operations) ** 2
        / max(base * row.operations + row.known, _SEEN)
        for row in kept
    )
    return max(1.0, total / max(1, len(kept) - 1))
