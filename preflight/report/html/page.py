"""`report.html`: one run on one page; a browser may run nothing on it but our script.

The policy names our style and our script by their hash and forbids the rest: no address is ever
contacted, and a string that slipped through as markup could neither load nor run anything.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.report.document import moment
from preflight.report.findings import Finding
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
from preflight.report.html.nodes import causes, looked, nodes
from preflight.report.picture.style import COLOURS, figures
from preflight.report.since import Night, alike, before, night_of, since
from preflight.report.terminal import title

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preflight.report.document import Report
    from preflight.report.since import Bad, Since


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


PAGE = "report.html"
"""The file in the run's folder."""

LARGEST = 2_000_000
"""Bytes of the page: it must open on a jump host, and pass through mail."""

_LEAST_FABRIC = 100_000
_PARTS = (
    ("changes", "What changed"),
    ("nodes", "Nodes"),
    ("findings", "Findings"),
    ("fabric", "Fabric"),
    ("trends", "Trends"),
    ("coverage", "Coverage"),
)


class Told(Struct, frozen=True, kw_only=True):
    """What stands beside the report of a run."""

    found: tuple[Finding, ...]
    earlier: tuple[Night, ...] = ()
    """Runs of the same folder before this one, oldest first."""
    drains: frozenset[str] = frozenset()
    """Checks that a node may be taken out of service for."""


def page(report: Report, told: Told, fabric: Callable[[int], str] | None = None) -> str:
    """Draw the whole page.

    `fabric` draws what was measured between nodes in at most so many bytes; None: nothing was.
    """
    now = night_of(report, told.found)
    last = before(told.earlier, now)
    above = (
        glance(report),
        changed(since(last, now, report) if last else None),
        nodes(report, told.found),
        causes(report, told.found, told.drains, suspected=bool(report.suspicions)),
    )
    below = (trends((*alike(told.earlier, now), now)), looked(report))
    used = sum(len(one.encode()) for one in (*above, *below))
    drawn = _fabric(fabric, max(_LEAST_FABRIC, LARGEST - used - len(_STYLE) - 20_000))
    header, *parts = above
    body = join(_bar(), header, tag("main", *parts, drawn, *below), _foot(report), _script())
    return f'<!DOCTYPE html>\n<html lang="en">{_head(report)}{tag("body", body)}</html>\n'


def _fabric(fabric: Callable[[int], str] | None, most: int) -> Html:
    if fabric is None:
        return section("fabric", "Fabric", note="No pairs were measured in this run.")
    # Every word in the drawing is escaped where it is drawn; here it stands one level deeper.
    drawing = fabric(most).replace("h2>", "h3>")
    return section("fabric", "Fabric", Html(drawing))


def _head(report: Report) -> Html:
    policy = (
        f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", page_title(report)),
        tag("style", _STYLE),
    )


def _bar() -> Html:
    links = (tag("li", tag("a", words, href=f"#{name}")) for name, words in _PARTS)
    return tag(
        "nav",
        tag(
            "div",
            tag("ul", *links),
            tag("span", id="status", role="status"),
            tag(
                "input",
                id="filter",
                type="search",
                placeholder="filter nodes, checks  ( / )",
                aria_label="Show only nodes, findings and checks that contain this",
                autocomplete="off",
            ),
        ),
        aria_label="Parts of this page",
    )


def _foot(report: Report) -> Html:
    said = f"preflight {report.preflight}, run {report.run}, document schema {report.schema}."
    return tag("footer", said, " All of it as data: report.json beside this file.")


def _script() -> Html:
    return tag("script", _SCRIPT)


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _own(name: str) -> Html:
    return Html(Path(__file__).with_name(name).read_text(encoding="utf-8"))


_STYLE = Html(COLOURS + figures() + _own("look.css"))
_SCRIPT = _own("act.js")


def waves_of(folders: Sequence[str]) -> Html:
    """Name the waves' folders, each with a link to the page in it."""
    links = (tag("li", tag("a", name, href=f"{name}/report.html#fabric")) for name in folders)
    said = tag(
        "p",
        "Pairs were measured within each wave; its page tells more.",
        class_="small",
    )
    return Html(said + tag("ul", *links))
