"""How surely samples of a planted fault could show it: plain tests with the generator's own rates.

Nothing of the decoder is used: the question is what *any* decoder could be asked for.
"""

from __future__ import annotations

from math import erf, exp, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_EVENTS = 4
"""One spike is a sample, not a rate; four are asked for."""

ALPHA = 1e-3
"""How often a healthy fabric may show anything at all, over all of its parts."""

ONE_EVENT_S = 0.05
"""Events nearer than that cannot be counted apart."""

_TWO = 2


def at_least(count: int, mean: float) -> float:
    """P(Poisson(mean) >= count)."""
    term, below = exp(-mean), 0.0
    for k in range(count):
        below += term
        term *= mean / (k + 1)
    return max(0.0, 1 - below)


def needed(
    background: float, parts: int, least: int = LEAST_EVENTS, dispersion: float = 1.0
) -> int:
    """How many events chance does not bring to any of so many parts; `background`: of one part.

    Bursts: events come `dispersion` at a time.
    """
    count = least
    while at_least(int(count / dispersion), background / dispersion) > ALPHA / parts:
        count += 1
    return count


def apart(mean: float, seconds: float) -> float:
    """Events that can be told apart, of `mean` at random moments of so many seconds."""
    if mean <= 1 or not seconds:
        return mean
    return 1 + (mean - 1) * exp(-mean * ONE_EVENT_S / seconds)


def of_events(
    partners: Sequence[float],
    background: float,
    parts: int,
    *,
    least: int,
    enough: int = LEAST_EVENTS,
    dispersion: float = 1.0,
) -> float:
    """Power to see a rate: enough events in all, and events with at least `least` partners.

    `partners`: by partner, how many events that can be told apart are expected.
    """
    seen = at_least(needed(background, parts, enough, dispersion), sum(partners))
    return max(0.0, seen - (1 - _seen_with(partners, least)))


def _seen_with(partners: Sequence[float], least: int) -> float:
    """P(at least so many partners see an event)."""
    if least <= 1:
        return 1.0
    none = 1.0
    for mean in partners:
        none *= exp(-mean)
    one = sum(none * exp(mean) * (1 - exp(-mean)) for mean in partners)
    return 1 - none - (one if least >= _TWO else 0.0)


def of_shift(
    log_shift: float, common_sd: float, each_sd: float, partners: int, tests: int
) -> float:
    """Power to see a median shifted, in log time, with so many partners among so many tests.

    `common_sd`: healthy spread that all observations of one part share; `each_sd`: of each alone.
    """
    sd = sqrt(common_sd**2 + each_sd**2 / max(1, partners))
    return _normal(log_shift / sd - _quantile(1 - ALPHA / tests))


def _normal(z: float) -> float:
    return (1 + erf(z / sqrt(2))) / 2


def _quantile(share: float) -> float:
    """Inverse of `_normal` by bisection: no table needed at this accuracy."""
    low, high = -12.0, 12.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _normal(middle) < share else (low, middle)
    return low
