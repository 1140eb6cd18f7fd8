"""What changed since last night: the first thing an operator wants to know of the second run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.report.html.markup import Html, tag
from preflight.report.html.parts import date_of, folded, section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.report.night import Bad
    from preflight.report.since import Since

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
