"""A series that creeps in one direction: something heats up, fills up, or falls back, while loaded.

Nobody is condemned for it; a drift shows in the second half of a job what a median hides.
"""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCKS, LEAST = 12, 96
"""The series is cut into so many blocks; of fewer values nothing is said."""

TAU = 0.8
"""Kendall's tau of block medians from which they go one way: by chance 2 in 10,000 of 12 do."""

CLEAR = 4.0
"""So many times the scatter of the blocks about the trend must the whole drift be."""


class Drift(Struct, frozen=True, kw_only=True):
    """The trend at its start and at its end, by Theil and Sen's line through the block medians."""

    start: float
    end: float
    tau: float


def drift(values: Sequence[float]) -> Drift | None:
    """Find a steady change of positive values over their order; None where there is none.

    Mann and Kendall's test on medians of `BLOCKS` blocks (Mann 1945; Kendall 1948), and the
    Theil-Sen slope (Sen 1968) of their logarithms: single spikes, and values that depend on the
    one before, move neither.
    """
    number = len(values)
    if number < LEAST or min(values) <= 0:
        return None
    edges = [number * at // BLOCKS for at in range(BLOCKS + 1)]
    logs = [math.log(median(values[a:b])) for a, b in pairwise(edges)]
    steps = [(j - i, logs[j] - logs[i]) for i, j in combinations(range(BLOCKS), 2)]
    tau = sum((up > 0) - (up < 0) for _, up in steps) / len(steps)
    if abs(tau) < TAU:
        return None
    slope = median([up / apart for apart, up in steps])
    base = median([log - slope * at for at, log in enumerate(logs)])
    scatter = median([abs(log - base - slope * at) for at, log in enumerate(logs)])
    if abs(slope) * (BLOCKS - 1) < CLEAR * scatter:
        return None
    return Drift(start=math.exp(base), end=math.exp(base + slope * (BLOCKS - 1)), tau=tau)
