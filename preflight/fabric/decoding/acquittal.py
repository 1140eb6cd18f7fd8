"""A clean second look acquits only where it was long enough to show what the first one showed.

Else the cable that spikes now and then is acquitted every time: no retry until green.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from preflight.fabric.decoding.events import watch
from preflight.fabric.decoding.numbers import number
from preflight.fabric.decoding.parts import ALL_RAILS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.culprit import Component, Found, SecondLookSaid
    from preflight.fabric.decoding.events import Watched
    from preflight.fabric.decoding.meetings import Meetings
    from preflight.fabric.decoding.parts import Place
    from preflight.fabric.observed import Observed

POWER = 0.99
"""With what probability the retest must have shown a fault of the rate first seen."""


class _Look(NamedTuple):
    """What went through one part."""

    events: int
    operations: int
    loaded_s: float


class SecondLook:
    """The scheduled rounds and the retests of one fabric, apart."""

    def __init__(self, observed: Observed, met: Meetings) -> None:
        """`met`: the meetings of both, which all operations are held against."""
        self._observed = observed
        least_us, border = number(observed.backend, "spike_us"), observed.retested
        self.first = watch(met.only(again=False, border=border), least_us)
        """What was seen before anybody was measured again."""
        self.again = watch(met.only(again=True, border=border), least_us)

    def kept(self, one: Found) -> Found | None:
        """A finding of events in the first rounds, told with all samples; None: it is acquitted.

        That takes all who were suspected of it: nobody is named because others were cleared.
        """
        doubts = [self._doubt(part, one) for part in one.among]
        if not any(doubts):
            return None
        looks = [self._looks(part, one) for part in one.among]
        first, again = max(looks, key=lambda both: both[0].events)
        return replace(
            one,
            events=first.events + again.events,
            operations=first.operations + again.operations,
            second_look=next(doubt for doubt in doubts if doubt),
        )

    def _doubt(self, part: Component, one: Found) -> SecondLookSaid:
        """Why its second look does not clear it; nothing where it does."""
        first, again = self._looks(part, one)
        if not again.operations or not first.operations:
            return "none"
        if self._confesses(part):
            return "counter_moved"
        share = max(0.0, first.events / first.operations - one.elsewhere)
        expected = share * min(
            again.operations,
            first.operations * again.loaded_s / first.loaded_s if first.loaded_s else math.inf,
        )
        return "" if _at_most(again.events, expected) <= 1 - POWER else "too_short"

    def _looks(self, part: Component, one: Found) -> tuple[_Look, _Look]:
        late = one.symptom == "late"
        return _look(self.first, part, late=late), _look(self.again, part, late=late)

    def _confesses(self, part: Component) -> bool:
        again = (one for one in self._observed.tried if one.round >= self._observed.retested)
        moved = (
            each
            for one in again
            if part.rail in (None, one.rail)
            for name, theirs in ((one.a, one.moved_a), (one.b, one.moved_b))
            if name in part.nodes
            for each in theirs
        )
        return any(each.proves for each in moved)


def _look(watched: Watched, part: Component, *, late: bool) -> _Look:
    counted = watched.late if late else watched.wire
    rows = [row for row, place in enumerate(counted.places) if _through(place, part)]
    single = [row for row in rows if counted.places[row].rail != ALL_RAILS]
    return _Look(
        sum(counted.events[row] for row in rows),
        sum(counted.operations[row] for row in single),
        sum(counted.loaded_s[row] for row in single),
    )


def _through(place: Place, part: Component) -> bool:
    ends = {place.a, place.b}
    if part.rail is not None and place.rail != part.rail:
        return False
    return ends == set(part.nodes) if part.kind == "path" else not ends.isdisjoint(part.nodes)


def _at_most(events: int, mean: float) -> float:
    """P(X <= events) of Poisson's law."""
    if mean <= 0:
        return 1.0
    terms: Sequence[float] = [
        math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
        for count in range(events + 1)
    ]
    return math.fsum(terms)
