"""How much was looked at: clean is only as good as the look, so the page ends with what was not."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from preflight.report.coverage import coverage_words
from preflight.report.findings import COUNTED
from preflight.report.html.markup import Html, join, tag
from preflight.report.html.parts import section
from preflight.report.missed import missed_words
from preflight.report.overrides import after
from preflight.report.picture.sharpness import sharpness
from preflight.report.text import printable
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from preflight.report.document import Report

_REASONS = 20


def looked(report: Report) -> Html:
    """Coverage, sharpness, what was not run and why, what the inventory laid over, every check."""
    # `sharpness` draws its own markup, of which every word is escaped.
    table = Html("".join(sharpness(report.missed)).replace("h2>", "h3>"))
    return section(
        "coverage",
        "Coverage",
        tag("dl", *_told(report), class_="told"),
        table,
        _not_run(report),
        _checks(report),
    )


def _told(report: Report) -> list[Html]:
    rows = [(label, words) for label, words in after(report.overrides)]
    if report.coverage is not None and report.coverage.pairs:
        rows.append(("pairs", coverage_words(report.coverage)))
    if words := missed_words(report.missed):
        rows.append(("could be missed", words))
    owed = f"{report.expected:,} verdicts were owed, {report.lost:,} of them lost"
    rows.append(("verdicts", owed))
    return [join(tag("dt", label), tag("dd", printable(words))) for label, words in rows]


def _not_run(report: Report) -> Html | None:
    reasons = Counter(row.sentence for row in report.verdicts if row.outcome is Outcome.NOT_RUN)
    if not reasons:
        return None
    total = sum(reasons.values())
    rows = [
        tag("tr", tag("td", f"{number:,}", class_="num"), tag("td", printable(reason)))
        for reason, number in reasons.most_common(_REASONS)
    ]
    more = len(reasons) - _REASONS
    return tag(
        "details",
        tag("summary", f"{total:,} verdicts were not run"),
        tag("table", *rows),
        tag("p", f"{more:,} more reasons are in report.json.", class_="small")
        if more > 0
        else None,
    )


def _checks(report: Report) -> Html:
    by_check: dict[str, Counter[Outcome]] = {}
    for row in report.verdicts:
        by_check.setdefault(row.check, Counter())[row.outcome] += 1
    used = [
        (outcome, word)
        for outcome, word in COUNTED
        if any(count[outcome] for count in by_check.values())
    ]
    head = tag("tr", tag("th", "check"), *(tag("th", word, class_="num") for _, word in used))
    rows = [
        tag(
            "tr",
            tag("th", check, scope="row"),
            *(
                tag("td", f"{count[outcome]:,}" if count[outcome] else "·", class_="num")
                for outcome, _ in used
            ),
            class_="row",
        )
        for check, count in by_check.items()
    ]
    return tag(
        "details",
        tag("summary", f"{len(by_check):,} checks, verdict by verdict"),
        tag("div", tag("table", head, *rows), class_="wide"),
    )
