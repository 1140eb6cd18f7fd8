"""The top of the page: the answer in one line, whom to leave out, and the numbers behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.report.document import moment
from preflight.report.html.markup import Html, join, tag
from preflight.report.html.parts import copied, date_of, folded, many, span_of
from preflight.report.terminal import title

if TYPE_CHECKING:
    from preflight.report.document import Report

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
