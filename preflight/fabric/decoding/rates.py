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
    from collections.abc import Collection, Sequence

    from preflight.fabric.decoding.exposures import Exposures

LEAST_RATE = 1e-6
"""Events per operation that a healthy wire is always allowed."""

LEAST_EVENTS = 3
"""No part is named for fewer: one event is a sample, not a rate."""

_STEPS = 6
_TRIMMED = 0.9
_COUNTED, _NORMAL = 2.0, 1.4826
_MANY = 400
_FEW_PEERS = 10  # the median of fewer says nothing of their scatter
LEAST_PEERS = 3
_DOUBT = 3.0  # one or two calm pairs are hardly a yardstick: thrice their rate is
_ADDS = 1.0  # of the fabric's own rate: less than twice as often is nobody's fault
_FEW, _FEW_WEIGH = 2, 1.6  # where there are two rounds only, both together may still prove it
_SEEN = 0.5  # events added to what was seen: none in n operations is no proof of a rate of zero


class _Count(NamedTuple):
    """Of some observations together."""

    operations: int
    events: float
    """Without those of faults that are accepted."""
    rows: int = 0


class Rates:
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

        `effect`: added events per operation that anybody would mind.
        `usual`: events per operation that healthy fabrics of this kind are known to have.
        `scatter`: by how much counts of healthy pairs are known to scatter more than Poisson's law.
        `alone`: what happened is proven by the part's own clock; peers only say how usual it is.
        `never`: a healthy fabric has none at all (a wrong sum), so that one is proof enough.
        """
        self._most = most
        self._effect = effect
        self._least_scatter = scatter
        self._usual = max(LEAST_RATE, usual)
        self._least_peers = 1 if alone or never else LEAST_PEERS
        self._never = never
        self._events = observed.events
        self._operations = [max(1, count) for count in observed.operations]
        self._known = [0.0] * len(self._events)
        """Expected, of faults accepted so far: without the healthy rate."""
        self._watched = sum(self._operations)
        self._left = float(sum(self._events))
        """Events that no accepted fault explains."""
        self._dispersion = max(scatter, _dispersion(self._events, self._known, self._operations))
        self._aside: frozenset[int] = frozenset()

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
        rest = self._watched - pairs * operations
        beyond = self._beyond_chance(
            _Count(pairs * operations, events), _Count(rest, self.base * rest)
        )
        return min(pairs * min(most, own / self._dispersion), beyond)

    def hot(self) -> list[int]:
        """Observations with any event."""
        return [number for number, events in enumerate(self._events) if events]

    def fit(self, through: Sequence[int]) -> tuple[float, float]:
        """The added rate, per operation, that fits best, and what assuming it gains."""
        return self._fit(through, self._most * (_FEW_WEIGH if len(through) <= _FEW else 1.0))

    def hunch(self, through: Sequence[int]) -> float:
        """What assuming it would gain if events did not come in bursts."""
        return self._fit(through, math.inf)[1]

    def _fit(self, through: Sequence[int], most: float) -> tuple[float, float]:
        own, rest = self._both(through)
        if own.events <= 0 or (not self._never and rest.rows < self._least_peers):
            return 0.0, 0.0
        base = self._base(rest)
        rate = own.events / own.operations - base
        if rate <= 0:
            return 0.0, 0.0
        healthy = [
            (self._events[number], self._known[number] + base * n, n)
            for number in through
            for n in (self._operations[number],)
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

    def shows(self, some: Sequence[int], strength: float, beside: Sequence[int]) -> bool:
        """Whether these fit a fault of that strength better than none; `beside`: healthy there."""
        base = self._base(self._both(beside)[1])
        gain = 0.0
        for number in some:
            added = strength * self._operations[number]
            mean = self._known[number] + base * self._operations[number]
            gain += self._events[number] * math.log1p(added / mean) - added
        return gain > 0

    def leave_out(self, some: Collection[int]) -> None:
        """These are no yardstick for others any more: several parts seem to be at fault at once."""
        self._aside = frozenset(some)

    def accept(self, through: Sequence[int], strength: float) -> None:
        """Expect its events from now on."""
        for number in through:
            added = strength * self._operations[number]
            self._known[number] += added
            self._left -= added

    def enough(self, strength: float, through: Sequence[int]) -> bool:
        """Whether it rests on more than a few events, and adds to what all have."""
        seen = sum([self._events[number] for number in through])
        if self._never:
            return seen > 0
        _, rest = self._both(through)
        usual = (rest.events + _SEEN) / max(1, rest.operations)
        return seen >= LEAST_EVENTS and strength >= max(self._effect, _ADDS * usual)

    def _base(self, rest: _Count) -> float:
        """The healthy rate that the rest of the fabric speaks for."""
        if self._never or not rest.operations:
            return LEAST_RATE
        doubt = 1.0 if rest.rows >= LEAST_PEERS else _DOUBT
        return max(LEAST_RATE, doubt * (rest.events + _SEEN) / rest.operations)

    def _both(self, through: Sequence[int]) -> tuple[_Count, _Count]:
        """What went through a part, and what its yardstick is: all else that is not left out."""
        own = self._count(through)
        aside = self._count(list(self._aside.difference(through)))
        return own, _Count(
            self._watched - own.operations - aside.operations,
            max(0.0, self._left - own.events - aside.events),
            len(self._events) - own.rows - aside.rows,
        )

    def _count(self, some: Sequence[int]) -> _Count:
        return _Count(
            sum([self._operations[number] for number in some]),
            sum([self._events[number] for number in some])
            - sum([self._known[number] for number in some]),
            len(some),
        )

    def _beyond_chance(self, own: _Count, rest: _Count) -> float:
        """Nats by which two rates fit better than one for all: a few calm pairs are no proof."""
        if own.events <= 0 or rest.operations <= 0:
            return 0.0
        mine, others = own.events / own.operations, rest.events / rest.operations
        together = (own.events + rest.events) / (own.operations + rest.operations)
        one = min(together, max(self._usual, others))
        nats = own.events * math.log(mine / one) - (mine - one) * own.operations
        nats += rest.events * math.log(others / one) if others else 0.0
        return nats - (others - one) * rest.operations

    def _scatter(self, through: Sequence[int]) -> float:
        """Dispersion of the rest; of the whole, trimmed, where that is as good and costs less."""
        if self._never:
            return 1.0
        if len(self._events) > _MANY:
            return self._dispersion
        own = self._aside.union(through)
        rest = [number for number in range(len(self._events)) if number not in own]
        if len(rest) < _FEW_PEERS:
            free = max(1, len(rest) + len(through) - 2)
            found = (self._pearson(rest) + self._pearson(through)) / free
        else:
            found = _dispersion(
                [self._events[number] for number in rest],
                [self._known[number] for number in rest],
                [self._operations[number] for number in rest],
            )
        return max(self._least_scatter, found)

    def _pearson(self, some: Sequence[int]) -> float:
        """Squared distances from one rate for all of these, each in units of Poisson's law."""
        count = self._count(some)
        rate = max(LEAST_RATE, count.events / max(1, count.operations))
        total = 0.0
        for number in some:
            mean = self._known[number] + rate * self._operations[number]
            total += (self._events[number] - mean) ** 2 / max(mean, _SEEN)
        return total


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
