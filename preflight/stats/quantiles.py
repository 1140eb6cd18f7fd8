"""Medians and percentiles of what was measured: never a mean, which one spike drags along."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


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
