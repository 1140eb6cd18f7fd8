"""Two modes in one series: a link that is at times fast and at times slow has no meaningful median.

Nobody is condemned for it: two routes, two clock rates, or two ways through a switch look like it.
"""

from __future__ import annotations

import math
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST, SHARE = 100, 0.1
"""Values below which nothing is said, and the least share of them in either mode."""

APART = 6.0
"""Ashman's D from which two modes are called that: halves of a normal distribution have 2.6, of a
uniform one 3.5; a mixture of two normal ones that just touch (D = 2 by its own means) 3.2."""

VALLEY = 0.1
"""Between two modes is at most so much of what the lesser one holds."""


class Modes(Struct, frozen=True, kw_only=True):
    """Two clusters of values, by the medians of each."""

    low: float
    high: float
    share_high: float
    apart: float
    """Ashman's D: the distance of their means in units of their scatter."""


def two_modes(values: Sequence[float]) -> Modes | None:
    """Split positive values in two where their logarithms vary least within; None for one mode.

    The split is the optimum of 2-means in one dimension (Fisher 1958; Otsu 1979), among those that
    leave `SHARE` on either side. It counts as two modes if Ashman's D = sqrt(2) |m1 - m2| /
    sqrt(s1^2 + s2^2) (Ashman, Bird and Zepf 1994, AJ 108:2348) is over `APART`, and if the middle
    third between both medians is a valley.
    """
    ranked = sorted([math.log(value) for value in values if value > 0])
    if len(ranked) < LEAST or ranked[0] == ranked[-1]:
        return None
    at = _split(ranked)
    low, high = ranked[:at], ranked[at:]
    apart = _ashman(low, high)
    if apart < APART or not _valley(low, high):
        return None
    return Modes(
        low=math.exp(median(low)),
        high=math.exp(median(high)),
        share_high=len(high) / len(ranked),
        apart=apart,
    )


def _split(ranked: Sequence[float]) -> int:
    """Where the variance between both sides is largest, with `SHARE` on either side."""
    number, total = len(ranked), math.fsum(ranked)
    least = max(1, math.ceil(SHARE * number))
    between = [
        (left * number - total * at) ** 2 / (at * (number - at))
        for at, left in enumerate(accumulate(ranked[: number - least]), 1)
    ][least - 1 :]
    return least + between.index(max(between))


def _ashman(low: Sequence[float], high: Sequence[float]) -> float:
    (one, one_spread), (other, other_spread) = _moments(low), _moments(high)
    # Values that are whole microseconds must not make a mode infinitely narrow.
    scatter = max(math.hypot(one_spread, other_spread), 1e-3)
    return math.sqrt(2) * (other - one) / scatter


def _moments(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    away = [value - mean for value in values]
    return mean, math.sqrt(math.fsum(map(mul, away, away)) / len(values))


def _valley(low: Sequence[float], high: Sequence[float]) -> bool:
    one, other = median(low), median(high)
    third = (other - one) / 3
    between = sum(one + third < value < other - third for value in (*low, *high))
    return between <= VALLEY * min(len(low), len(high))
