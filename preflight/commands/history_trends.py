"""Numbers over the nights, one line per measure: the last night beside the median of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from preflight.commands.history_days import day
from preflight.stats.own_past import FEWEST, usual
from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight.history.told import Trend

_UNITS = {
    "tflops": "TFLOPS",
    "gflops": "GFLOPS",
    "gbs": "GB/s",
    "gbits": "Gb/s",
    "us": "us",
}
_WHOLE = 1000
_EFFECT, _SCATTER = 0.05, 0.01
"""From when on a change is pointed at here. Chosen: nothing is judged by it."""


class _Last(NamedTuple):
    unit: str
    value: float
    usual: float | None
    """The median of the nights before; None for too few of them."""
    nights: int
    change: float
    """Against that, in per cent of speed: less is worse, also of a time."""
    worse: bool


def trend_lines(trends: Sequence[Trend]) -> Iterator[tuple[str, str]]:
    """One line per measure, under what its last night was measured."""
    latest: dict[str, list[Trend]] = {}
    for one in trends:
        latest.setdefault(one.measure, []).append(one)
    last_s = max((one.points[-1].started_s for one in trends), default=0.0)
    for place, (measure, own) in enumerate(latest.items()):
        newest = max(one.points[-1].started_s for one in own)
        now = [one for one in own if one.points[-1].started_s == newest]
        said = _line(measure, [_last(measure, one) for one in now], now[0].under)
        when = f" on {day(newest)}" if newest < last_s else ""
        yield ("trends" if place == 0 else ""), f"{measure.rpartition('_')[0]}{when}: {said}"


def _line(measure: str, units: Sequence[_Last], under: str) -> str:
    name = _UNITS.get(measure.rpartition("_")[2], "")
    values = [one.value for one in units]
    least, most = _told(min(values)), _told(max(values))
    reached = least if least == most else f"{least} to {most}"
    known = [one for one in units if one.usual is not None]
    if not known:
        few = max(one.nights for one in units)
        return f"{reached} {name} ({under}); {few} before it, {FEWEST} make a trend"
    odd = min(known, key=lambda one: one.change)
    word = "WORSE: " if odd.worse else ""
    return (
        f"{reached} {name} ({under}); {word}{odd.unit} {_told(odd.value)}, {odd.change:+.1f} % of "
        f"speed against its median {_told(odd.usual or 0.0)} of {odd.nights} nights"
    )


def _told(value: float) -> str:
    """Four digits that matter, and no power of ten."""
    return f"{value:,.0f}" if abs(value) >= _WHOLE else f"{value:.4g}"


def _last(measure: str, trend: Trend) -> _Last:
    values = [one.value for one in trend.points]
    last, before = values[-1], values[:-1]
    less_is_more = measure.endswith("_us")

    def speed(value: float) -> float:
        return 1 / value if less_is_more else value

    found = usual([speed(one) for one in before if one > 0], effect=_EFFECT, scatter=_SCATTER)
    if found is None or last <= 0:
        return _Last(trend.unit, last, None, len(before), 0.0, worse=False)
    now = speed(last)
    return _Last(
        trend.unit,
        last,
        median(before),
        found.nights,
        100 * (now / found.middle - 1),
        worse=now < found.least,
    )
