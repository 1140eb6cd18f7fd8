"""Groups, medians, quantiles and what follows from them: never a mean, which one spike drags along.

A part that was always slow is as it always was; only peers and floors can tell that.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Sequence


Key = TypeVar("Key", bound="Hashable")
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of each key, both in the order in which they come."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle; ValueError for none."""
    if not values:
        raise ValueError("no values: a median of nothing is unknown, not 0")
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


def nearest_rank(values: Sequence[float], share: float) -> float:
    """The least value that at least `share` (0 to 1) of the values do not exceed.

    As nccl-tests does it: a value that was really measured, and p99 of fewer than 100 is the
    largest. ValueError for no values.
    """
    if not values:
        raise ValueError("no values: a percentile of nothing is unknown, not 0")
    rank = max(1, math.ceil(share * len(values)))
    return sorted(values)[rank - 1]


class LeaveOut:
    """Values that each belong to some owners; medians over those that belong to none of a few.

    Sorted once: asking for every pair of 4,096 nodes costs as many small walks, not as many sorts.
    """

    def __init__(self, owned: Iterable[tuple[float, Collection[Hashable]]]) -> None:
        ranked = sorted(owned, key=lambda one: one[0])
        self._values = [value for value, _ in ranked]
        self._places = grouped(
            (owner, place) for place, (_, owners) in enumerate(ranked) for owner in owners
        )

    def median(self, without: Iterable[Hashable], between: float = 0.5) -> float | None:
        """Median of the values that belong to none of `without`; None if there are none.

        `between`: of an even number, where between the two in the middle (0: the lower, 1: the
        higher).
        """
        out = self._out(without)
        left = len(self._values) - len(out)
        if not left:
            return None
        high = self._value(left // 2, out)
        if left % 2:
            return high
        return (1 - between) * self._value(left // 2 - 1, out) + between * high

    def _out(self, without: Iterable[Hashable]) -> list[int]:
        return sorted({place for owner in without for place in self._places.get(owner, ())})

    def _value(self, rank: int, out: list[int]) -> float:
        """The value at `rank` once the places in `out` (ascending) are skipped."""
        place = rank
        for skipped in out:
            if skipped > place:
                break
            place += 1
        return self._values[place]


FEWEST: Final = 5
"""Nights; of fewer a median and a scatter say too little to blame anybody."""

DEVIATIONS: Final = 6.0
SIGMA: Final = 1.4826
"""So many standard deviations off the median, one being 1.4826 MAD for normal noise (in log time).
Six, as against peers: a fleet of 8,000 GPUs and 365 nights is 3 million looks."""

RANGES: Final = 2.0
"""And twice what its nights differ by, without a tenth at either end: of five nights the MAD may be
small by chance. Simulated, 20,000 nights of 5 % noise after five such nights: 0.3 % were blamed by
the MAD alone, 0.1 % so; of 2 % noise none by either."""


def healthy_share(away: Sequence[float], *, effect: float, scatter: float) -> float:
    """The part of a middle that is still healthy: beyond the scatter, and by an effect that counts.

    `away`: how far each is from that middle, in log time; `scatter`: what is believed at least.
    """
    return min(1 - effect, math.exp(-DEVIATIONS * max(SIGMA * median(away), scatter)))


class Usual(NamedTuple):
    """What a part reaches on its nights, as a speed (more is better)."""

    middle: float
    share: float
    """Below that part of the middle it is beyond its own scatter, and by an effect that counts."""
    nights: int

    @property
    def least(self) -> float:
        """The least speed that is still like its own past."""
        return self.middle * self.share


def usual(speeds: Sequence[float], *, effect: float, scatter: float) -> Usual | None:
    """Its median night and how far below it a night may be; None for too few nights.

    `effect`: the part that must be missing at least. `scatter`: in log time, what nights differ by
    at least. Of an even number of nights the slower of the middle two counts.
    """
    known = sorted(one for one in speeds if one > 0 and math.isfinite(one))
    if len(known) < FEWEST:
        return None
    middle = known[(len(known) - 1) // 2]
    logs = [math.log(one) for one in known]
    spread = SIGMA * median([abs(one - math.log(middle)) for one in logs])
    cut = len(known) // 10
    apart = logs[-1 - cut] - logs[cut]
    share = min(1 - effect, math.exp(-max(DEVIATIONS * max(spread, scatter), RANGES * apart)))
    return Usual(middle, share, len(known))


SHARE, LEAST = 0.25, 3
"""Over a quarter of the nodes and at least three."""


def shared_cause(blamed: int, nodes: int) -> bool:
    """Whether that many of `nodes` are no list of faults. Counted on nodes, never on pairs."""
    return blamed >= LEAST and blamed > SHARE * nodes
