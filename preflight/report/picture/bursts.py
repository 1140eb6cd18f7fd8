"""How often a pair spikes, against the healthy rest: what chance explains is no colour."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from preflight.report.picture.against import Against

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from preflight.fabric.decoding.shown import Events, Turn

_SEEN = 0.5
"""Events added to those seen and to those expected: none in n operations is no rate of zero."""

_CHANCE = 2.5
"""So many deviations beyond what is expected is no chance, even of hundreds of pairs."""

_LEAST_PEERS = 3


def against_others(
    events: Mapping[Turn, Events],
    scatter: float,
    blamed: Collection[Turn],
    *,
    late: bool = False,
) -> dict[Turn, Against]:
    """Each count of spikes, or of late starts, against the rate of all that nobody is blamed for.

    `scatter`: times the variance that Poisson's law gives counts of healthy pairs. Within it a pair
    is as its peers, unless something through it is `blamed`.
    """
    sums = _Sums(events, blamed, late=late)
    return {turn: _against(turn, one, sums, scatter) for turn, one in events.items()}


class _Sums:
    """Events and operations of the fabric, with and without what is blamed."""

    def __init__(
        self, events: Mapping[Turn, Events], blamed: Collection[Turn], *, late: bool
    ) -> None:
        self.late = late
        self.blamed = blamed
        healthy = [one for turn, one in events.items() if turn not in blamed]
        enough = len(healthy) > _LEAST_PEERS
        kept = healthy if enough else list(events.values())
        self._hits = sum(self.seen(one) for one in kept)
        self._tries = sum(one.operations for one in kept)
        self._excluded = frozenset(blamed) if enough else frozenset[str]()

    def seen(self, one: Events) -> int:
        return one.late if self.late else one.wire

    def expected(self, turn: Turn, one: Events) -> float | None:
        """By the others' rate; None where there are no others."""
        mine = turn not in self._excluded
        tries = self._tries - (one.operations if mine else 0)
        hits = self._hits - (self.seen(one) if mine else 0)
        return one.operations * hits / tries if tries > 0 else None


def _against(turn: Turn, one: Events, sums: _Sums, scatter: float) -> Against:
    seen, expected = sums.seen(one), sums.expected(turn, one)
    if expected is None:
        return Against(seen, None, None, of=one.operations, longest_us=one.longest_us)
    ratio = (seen + _SEEN) / (expected + _SEEN)
    chance = _CHANCE * math.sqrt(scatter * (expected + _SEEN))
    if turn not in sums.blamed and seen - expected <= chance:
        ratio = min(1.0, ratio)
    return Against(seen, expected, ratio, of=one.operations, longest_us=one.longest_us)
