"""Groups, medians and quantiles; never a mean, which a single spike distorts.

A part that has always been slow equals its own past; only its peers and floors reveal it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

Key = TypeVar("Key", bound="Hashable")
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of each key; keys and values keep their order."""
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

    As in nccl-tests it is always a measured value; p99 of fewer than 100 values is the largest.
    ValueError for no values.
    """
    if not values:
        raise ValueError("no values: a percentile of nothing is unknown, not 0")
    rank = max(1, math.ceil(share * len(values)))
    return sorted(values)[rank - 1]


class LeaveOut:
    """Values that each belong to some owners; medians that leave the values of some owners out.

    Sorted once: for every pair of 4,096 nodes a query is a short walk, not a sort.
    """

    def __init__(self, values: Iterable[tuple[float, Collection[Hashable]]]) -> None:
        ranked = sorted(values, key=lambda entry: entry[0])
        self._values = [value for value, _ in ranked]
        self._places = grouped(
            (owner, place) for place, (_, owners) in enumerate(ranked) for owner in owners
        )

    def median(self, without: Iterable[Hashable], position: float = 0.5) -> float | None:
        """Median of the values that belong to none of `without`; None if there are none.

        `position`: for an even number of values, where between the middle two (0: the lower, 1:
        the higher).
        """
        places = sorted({place for owner in without for place in self._places.get(owner, ())})
        count = len(self._values) - len(places)
        if not count:
            return None
        high = self._value(count // 2, places)
        if count % 2:
            return high
        return (1 - position) * self._value(count // 2 - 1, places) + position * high

    def _value(self, rank: int, left_out: list[int]) -> float:
        """The value at `rank` once the places in `left_out` (ascending) are skipped."""
        place = rank
        for omitted in left_out:
            if omitted > place:
                break
            place += 1
        return self._values[place]


FEWEST_NIGHTS: Final = 5
"""Nights; with fewer, median and scatter are too uncertain to blame a node."""

DEVIATIONS: Final = 6.0
SIGMA_MAD: Final = 1.4826
"""Standard deviations below the median; one is 1.4826 MAD for normal noise (in log time). Six, as
in the comparison with peers: 8,000 GPUs and 365 nights are 3 million measurements."""

RANGES: Final = 2.0
"""And twice the range of its nights, without a tenth at either end: the MAD of five nights may be
small by chance. In a simulation of 20,000 nights with 5 % noise after five such nights, the MAD
alone blamed 0.3 %, both together 0.1 %; with 2 % noise, neither blamed any."""


def healthy_share(mad: float, *, effect: float, scatter: float) -> float:
    """The share of the middle down to which a value is healthy, by scatter and by effect size.

    `mad`: the median distance from the middle, in log time; `scatter`: the least scatter assumed.
    """
    return min(1 - effect, math.exp(-DEVIATIONS * max(SIGMA_MAD * mad, scatter)))


class UsualSpeed(NamedTuple):
    """A part's usual speed over its nights (more is better)."""

    middle: float
    share: float
    """Below this share of the middle a night is outside the part's own scatter."""
    nights: int

    @property
    def least(self) -> float:
        """The least speed that is still like its own past."""
        return self.middle * self.share


def usual_speed(speeds: Sequence[float], *, effect: float, scatter: float) -> UsualSpeed | None:
    """The median night and how far below it a night may be; None for too few nights.

    `effect`: the least loss that counts, as a share. `scatter`: the least scatter of nights
    assumed, in log time. Of an even number of nights the slower of the middle two counts.
    """
    ranked = sorted(speed for speed in speeds if speed > 0 and math.isfinite(speed))
    if len(ranked) < FEWEST_NIGHTS:
        return None
    middle = ranked[(len(ranked) - 1) // 2]
    logs = [math.log(speed) for speed in ranked]
    mad = median([abs(log - math.log(middle)) for log in logs])
    cut = len(ranked) // 10
    spread = logs[-1 - cut] - logs[cut]
    share = healthy_share(mad, effect=effect, scatter=scatter)
    return UsualSpeed(middle, min(share, math.exp(-RANGES * spread)), len(ranked))


SYSTEMIC_SHARE, SYSTEMIC_NODES = 0.25, 3
"""More than a quarter of the nodes, and at least three."""


def shared_cause(blamed: int, nodes: int) -> bool:
    """Whether so many of `nodes` are blamed that one common cause is likelier; never of pairs."""
    return blamed >= SYSTEMIC_NODES and blamed > SYSTEMIC_SHARE * nodes
