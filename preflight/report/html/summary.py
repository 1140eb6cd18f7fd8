"""The top of the page: the answer in one line, what changed, and the last nights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.report.document import moment
from preflight.report.html.markup import (
    Html,
    copied,
    date_of,
    folded,
    join,
    many,
    section,
    span_of,
    tag,
)
from preflight.report.terminal import title

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.report.document import Report
    from preflight.report.since import Bad, Night, Since


_MARK = {0: "✓", 1: "✗"}
_KIND = {0: "good", 1: "bad"}
_MEANS = {
    0: "ready",
    1: "not ready",
    2: "interrupted",
    3: "not all was judged",
    4: "wrong usage",
    5: "nothing to check",
}


def glance(report: Report) -> Html:
    """Lay it out."""
    return tag(
        "header",
        tag("p", *_which(report), class_="which"),
        tag(
            "h1",
            tag("span", _MARK.get(report.exit, "!"), class_="mark", aria_hidden="true"),
            _headline(report),
            class_=_KIND.get(report.exit, "open"),
        ),
        *_leave_out(report),
        _figures(report),
        *(tag("p", note, class_="note") for note in report.suspicions),
    )


def _headline(report: Report) -> str:
    said = title(report)
    return said[:1].upper() + said[1:]


def _which(report: Report) -> list[str | Html]:
    words = [
        date_of(report.started),
        f"tier {report.tier}",
        span_of(report.seconds),
        f"nodes from {report.fleet.origin}",
        f"exit {report.exit}, {_MEANS.get(report.exit, '')}",
    ]
    return [tag("b", "preflight"), *(join(" · ", tag("span", word)) for word in words)]


def _leave_out(report: Report) -> list[Html]:
    fleet = report.fleet
    rows: list[Html] = []
    if fleet.not_ready:
        rows.append(
            tag(
                "p",
                tag("span", "leave out", class_="label"),
                tag("code", fleet.exclude),
                copied("copy nodes", fleet.exclude),
                copied("copy --exclude", f"--exclude={fleet.exclude}"),
                class_="line",
            )
        )
    if fleet.ready and fleet.not_ready:
        ready = folded(fleet.ready)
        rows.append(
            tag(
                "p",
                tag("span", "launch on", class_="label"),
                tag("code", ready),
                copied("copy nodes", ready),
                class_="line",
            )
        )
    rows += [
        tag(
            "p",
            tag("span", "apart", class_="label"),
            f"{a} and {b} must not be in one job",
            class_="line",
        )
        for a, b in fleet.apart
    ]
    return rows


def _figures(report: Report) -> Html:
    fleet = report.fleet
    pairs = report.coverage.pairs_run if report.coverage else None
    told = [
        (len(fleet.nodes), "node" + "s" * (len(fleet.nodes) != 1)),
        (len(fleet.ready), "ready"),
        (len(fleet.not_ready), "not ready"),
        (len(fleet.unjudged), "not judged"),
        (pairs, "pairs measured"),
        (report.expected, "verdicts owed"),
        (report.lost, "lost"),
    ]
    return tag(
        "dl",
        *(
            tag("div", tag("dd", f"{number:,}"), tag("dt", words))
            for number, words in told
            if number is not None
        ),
        class_="figures",
    )


def page_title(report: Report) -> str:
    """Name the tab."""
    day = f"{moment(report.started):%d %b %Y}"
    return f"preflight: {title(report)} · {day} · {many(len(report.fleet.nodes), 'node')}"


_MOST = 60
"""Rows per column; the rest is counted."""


def changed(told: Since | None) -> Html:
    """Four columns; or that there is nothing to compare with."""
    if told is None:
        return section(
            "changes",
            "What changed",
            note="No earlier run of this fleet lies beside this one: there is nothing to compare.",
        )
    before = told.before
    ready = f"{before.ready:,} of {before.nodes:,} nodes were ready then"
    columns = [
        _column("new", "+", "New", told.new),
        _column("still", "=", "Still", told.still),
        _column("healed", "✓", "Recovered", told.recovered),
    ]
    if told.unseen:
        columns.append(_column("unseen", "-", "Not judged again", told.unseen))
    return section(
        "changes",
        "What changed",
        tag("div", *columns, class_="columns"),
        note=f"Against the run of {date_of(before.started)} (tier {before.tier}; {ready}).",
    )


def _column(css: str, mark: str, heading: str, rows: Sequence[Bad]) -> Html:
    by_check: dict[str, list[str]] = {}
    for one in rows:
        by_check.setdefault(one.check, []).append(one.subject)
    lines = [
        tag("li", tag("b", folded(names)), " ", tag("span", check, class_="check"), class_="row")
        for check, names in list(by_check.items())[:_MOST]
    ]
    more = len(by_check) - _MOST
    return tag(
        "div",
        tag(
            "h3",
            tag("span", mark, class_="mark", aria_hidden="true"),
            heading,
            tag("span", f"{len(rows):,}", class_="count"),
        ),
        tag("ul", *lines) if lines else tag("p", "none", class_="small"),
        tag("p", f"and {more} more checks", class_="small") if more > 0 else None,
        class_=f"change {css}",
    )


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
