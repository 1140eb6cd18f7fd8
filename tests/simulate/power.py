"""How surely samples of a planted fault could show it: plain tests with the generator's own rates.

Nothing of the decoder is used: the question is what *any* decoder could be asked for.
"""

from __future__ import annotations

from math import erf, exp, sqrt
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_EVENTS = 4
"""One spike is a sample, not a rate; four are asked for."""

ALPHA = 1e-3
"""How often a healthy fabric may show anything at all, over all of its parts."""

ONE_EVENT_S = 0.05
"""Events nearer than that cannot be counted apart."""


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


class Events(NamedTuple):
    """What measurements with one partner are expected to show of a rate."""

    chances: tuple[float, ...]
    """Of each measurement: how likely it shows an event at all."""
    more: float = 0.0
    """Expected beyond the first of each, as far as they can be told apart."""


def apart(mean: float, seconds: float) -> Events:
    """Of `mean` events at random moments of so many seconds: the first, and those far behind it."""
    first = 1 - exp(-mean)
    further = exp(-mean * ONE_EVENT_S / seconds) if seconds else 1.0
    return Events((first,), (mean - first) * further)


def together(measured: Sequence[Events], times: int = 1) -> Events:
    """Several measurements with one partner, each made so many times."""
    chances = tuple(chance for one in measured for chance in one.chances)
    return Events(chances * times, sum(one.more for one in measured) * times)


def of_events(
    partners: Sequence[Events],
    background: float,
    parts: int,
    *,
    least: int,
    enough: int = LEAST_EVENTS,
    dispersion: float = 1.0,
) -> float:
    """Power to see a rate: enough events in all, and events with at least `least` partners."""
    count = needed(background, parts, enough, dispersion)
    firsts = _counts([chance for one in partners for chance in one.chances], count)
    more = sum(one.more for one in partners)
    seen = sum(
        chance * at_least(max(0, count - number), more) for number, chance in enumerate(firsts)
    )
    if least <= 1:
        return seen  # whoever saw enough events was with somebody
    with_partners = _counts([_any(one.chances) for one in partners], least)[least]
    return max(0.0, seen - (1 - with_partners))


def _any(chances: Sequence[float]) -> float:
    none = 1.0
    for chance in chances:
        none *= 1 - chance
    return 1 - none


def _counts(chances: Sequence[float], most: int) -> list[float]:
    """P(exactly k of these happen) for k below `most`, and P(at least `most`) at its end."""
    found = [1.0] + [0.0] * most
    for chance in chances:
        for count in range(most, 0, -1):
            stays = 1.0 if count == most else 1 - chance
            found[count] = found[count] * stays + found[count - 1] * chance
        found[0] *= 1 - chance if most else 1.0
    return found


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
