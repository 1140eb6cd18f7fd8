"""The findings, one per cause: whom, what was seen and expected, what to do, and what to paste."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from preflight.report.html.markup import Html, tag
from preflight.report.html.parts import copied, folded, many, section
from preflight.report.since import nodes_in
from preflight.report.text import printable
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from preflight.report.document import Report
    from preflight.report.findings import Finding

MOST = 200
"""Findings with a place of their own; beyond, the page says how many more there are."""

_LETTER = {
    Outcome.FAIL: ("F", "fail"),
    Outcome.FLAKY: ("~", "flaky"),
    Outcome.UNKNOWN: ("?", "unknown"),
    Outcome.BROKEN: ("B", "open"),
    Outcome.LOST: ("L", "open"),
    Outcome.WARN: ("w", "warn"),
    Outcome.WAIVED: ("v", "warn"),
}
_WORDS = {Outcome.BROKEN: "fault of preflight", Outcome.WARN: "warning"}
_REASON = 120
"""Characters of a drain reason: Slurm's tools show a line of it."""


def causes(
    report: Report, found: Sequence[Finding], drains: Collection[str], *, suspected: bool
) -> Html:
    """Lay out all of them, worst first.

    `drains`: checks that a node may be taken out of service for. `suspected`: so many nodes are
    condemned that one shared cause is likelier; no drain is offered then.
    """
    if not found:
        return section("findings", "Findings", tag("p", "Nothing to report."))
    known = frozenset(report.fleet.nodes)
    drawn = [
        _one(number, finding, known, may_drain=not suspected and finding.check in drains)
        for number, finding in enumerate(found[:MOST])
    ]
    more = len(found) - MOST
    return section(
        "findings",
        "Findings",
        *drawn,
        tag("p", f"{more:,} more findings are in report.json.") if more > 0 else None,
    )


def _one(number: int, one: Finding, known: frozenset[str], *, may_drain: bool) -> Html:
    letter, css = _LETTER[one.outcome]
    nodes = sorted({n for subject in one.subjects for n in nodes_in(subject, known)})
    who, exclude = folded(one.subjects), folded(nodes)
    also = f"also {', '.join(one.also)}" if one.also else ""
    verdicts = many(one.verdicts, "verdict") if one.verdicts > 1 else ""
    told = " · ".join(filter(None, (also, verdicts)))
    return tag(
        "article",
        tag(
            "h3",
            tag("span", tag("b", letter), class_=f"n {css}", aria_hidden="true"),
            tag("span", _WORDS.get(one.outcome, str(one.outcome)), class_="outcome"),
            tag("span", who, class_="who"),
            tag("span", one.check, class_="check"),
        ),
        tag("p", printable(one.sentence)),
        tag("p", tag("span", "do", class_="label"), printable(one.advice), class_="do")
        if one.advice and one.outcome is not Outcome.WAIVED
        else None,
        tag("p", told, class_="small") if told else None,
        _paste(one, exclude, nodes, may_drain=may_drain),
        id=f"f{number}",
        data_all="" if _of_most(nodes, known) else None,
        data_nodes=None if _of_most(nodes, known) else " ".join(nodes),
        class_=f"finding {css}",
    )


def _of_most(nodes: Sequence[str], known: frozenset[str]) -> bool:
    """Then the filter leaves it where it is: its names would fill the page."""
    return len(nodes) > max(1, len(known) // 2)


def _paste(one: Finding, exclude: str, nodes: Sequence[str], *, may_drain: bool) -> Html | None:
    if not nodes:
        return None
    about = f" of {one.check}"
    buttons = [copied("copy nodes", exclude, about=about)]
    if one.condemns:
        buttons.append(copied("copy --exclude", f"--exclude={exclude}", about=about))
    if not (may_drain and one.condemns):
        return tag("p", *buttons, class_="paste")
    command = drain_command(exclude, one)
    return tag(
        "p",
        *buttons,
        copied("copy drain command", command, about=about),
        tag("code", command),
        class_="paste",
    )


def drain_command(nodes: str, one: Finding) -> str:
    """Give what takes them out of service; the reason begins as those of our own hook do."""
    plain = "".join(c if c.isalnum() or c in " .:/()%+-" else " " for c in one.sentence)
    told = " ".join(plain.encode("ascii", "ignore").decode().split())
    reason = f"pf:{one.check} {told}"[:_REASON].rstrip()
    return f"scontrol update NodeName={shlex.quote(nodes)} State=DRAIN Reason={shlex.quote(reason)}"
