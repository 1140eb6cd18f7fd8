"""How the last nights went, as small lines: what drifts is seen before it crosses a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.report.html.markup import Html, tag
from preflight.report.html.parts import date_of, many, section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.report.night import Night

_WIDTH, _HEIGHT, _EDGE = 220.0, 44.0, 4.0
_LEAST = 2


class Trend(Struct, frozen=True):
    """One number over the nights, oldest first; None where a night does not tell it."""

    heading: str
    values: tuple[float | None, ...]
    unit: str = ""
    digits: int = 0

    def said(self, value: float) -> str:
        """Write one value with its unit."""
        return f"{value:,.{self.digits}f}{self.unit}"


def trends(nights: Sequence[Night]) -> Html:
    """Draw them; `nights` are the earlier runs and this one, oldest first."""
    if len(nights) < _LEAST:
        note = (
            "There is one run of this kind only: trends begin with the second in the same folder."
        )
        return section("trends", "Trends", note=note)
    drawn = [_card(one, nights) for one in _of(nights) if _known(one) >= _LEAST]
    note = f"{many(len(nights), 'run')}, {date_of(nights[0].started)} to this one, left to right."
    return section("trends", "Trends", tag("div", *drawn, class_="cards"), note=note)


def _of(nights: Sequence[Night]) -> list[Trend]:
    return [
        Trend("Nodes not ready", tuple(float(len(one.not_ready)) for one in nights)),
        Trend("Findings, by subject", tuple(float(len(one.bad)) for one in nights)),
        Trend("Busbw of the typical pair", tuple(n.busbw_p50_gbs for n in nights), " GB/s", 2),
        Trend("Busbw that 95 % of pairs reach", tuple(n.busbw_p5_gbs for n in nights), " GB/s", 2),
        Trend("Verdicts lost", tuple(float(one.lost) for one in nights)),
        Trend("Time taken", tuple(one.seconds / 60 for one in nights), " min", 1),
    ]


def _known(one: Trend) -> int:
    return sum(value is not None for value in one.values)


def _card(one: Trend, nights: Sequence[Night]) -> Html:
    known = [value for value in one.values if value is not None]
    low, high = min(known), max(known)
    spread = f"{one.said(low)} to {one.said(high)}" if high > low else "no change"
    words = f"{one.heading}: {one.said(known[-1])} now, {spread} over {len(nights)} runs"
    return tag(
        "figure",
        tag("figcaption", one.heading),
        tag("p", one.said(known[-1]), class_="now"),
        _line(one.values, low, high, words),
        tag("p", spread, class_="small"),
        class_="card",
    )


def _line(values: Sequence[float | None], low: float, high: float, words: str) -> Html:
    """One path; a night that does not tell it leaves a gap."""
    step = (_WIDTH - 2 * _EDGE) / max(1, len(values) - 1)
    tall = _HEIGHT - 2 * _EDGE
    path, pen, last = [], "M", (0.0, 0.0)
    for at, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        up = (value - low) / (high - low) if high > low else 0.5
        last = (_EDGE + at * step, _EDGE + (1 - up) * tall)
        path.append(f"{pen}{last[0]:.1f} {last[1]:.1f}")
        pen = "L"
    return tag(
        "svg",
        tag("path", d="".join(path), class_="spark"),
        tag("circle", cx=f"{last[0]:.1f}", cy=f"{last[1]:.1f}", r="3", class_="end"),
        viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}",
        preserveAspectRatio="xMinYMid meet",
        role="img",
        aria_label=words,
    )
