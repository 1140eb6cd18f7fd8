"""How far a count can be trusted: exact intervals of a share that was seen so many times."""

from __future__ import annotations

from math import exp, lgamma, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIDENCE = 0.95
_STEPS = 60


def clopper_pearson(hits: int, tries: int) -> tuple[float, float]:
    """The 95 % interval of a share that was seen `hits` times in `tries`; (0, 1) for no tries.

    Source: Clopper and Pearson 1934; found by bisection of the binomial tails, so it is exact.
    """
    if not tries:
        return 0.0, 1.0
    alpha = (1 - CONFIDENCE) / 2
    low = 0.0 if hits == 0 else _root(lambda p: 1 - _at_most(hits - 1, tries, p) < alpha)
    high = 1.0 if hits == tries else _root(lambda p: _at_most(hits, tries, p) >= alpha)
    return low, high


def _root(below: Callable[[float], bool]) -> float:
    """Where a condition that holds for small shares stops to hold."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2


def _at_most(hits: int, tries: int, share: float) -> float:
    """P(binomial(tries, share) <= hits)."""
    if share <= 0:
        return 1.0
    if share >= 1:
        return float(hits >= tries)
    return min(1.0, sum(exp(_log_chance(k, tries, share)) for k in range(hits + 1)))


def _log_chance(hits: int, tries: int, share: float) -> float:
    ways = lgamma(tries + 1) - lgamma(hits + 1) - lgamma(tries - hits + 1)
    return ways + hits * log(share) + (tries - hits) * log(1 - share)
