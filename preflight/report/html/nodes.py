"""Every node as a square under its leaf switch: a bad rack is seen as a bad row.

State is told by a letter and by shape beside the colour; only what is not fine is a link, so that
the keyboard reaches a handful of squares and not a thousand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fleet.nodeset import natural
from preflight.report.html.markup import Html, join, tag
from preflight.report.html.parts import folded, many, section
from preflight.report.since import nodes_in
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.report.document import Report
    from preflight.report.findings import Finding

NAMED = 48
"""Up to so many nodes a square has room for its name."""

_BLOCK = 32
"""Nodes in a row where no leaf switch is known."""


class Mark(Struct, frozen=True):
    """How a node's square looks, and where it leads."""

    letter: str
    css: str
    words: str
    finding: int | None = None


READY = Mark("", "fine", "ready")
_UNJUDGED = Mark("-", "open", "not judged")
_OF: Mapping[Outcome, tuple[str, str, str]] = {
    Outcome.FAIL: ("F", "fail", "failed"),
    Outcome.FLAKY: ("~", "flaky", "flaky"),
    Outcome.UNKNOWN: ("?", "unknown", "unknown"),
    Outcome.BROKEN: ("B", "open", "a fault of preflight"),
    Outcome.LOST: ("L", "open", "its verdict was lost"),
    Outcome.WARN: ("w", "warn", "warned"),
    Outcome.WAIVED: ("v", "warn", "waived"),
}


def marks(report: Report, found: Sequence[Finding]) -> dict[str, Mark]:
    """Give each node the mark of its worst finding; the findings come worst first.

    A warning that all nodes share is about the fleet, and would only hide who stands out.
    """
    known = frozenset(report.fleet.nodes)
    out = frozenset(report.fleet.not_ready)
    given = dict.fromkeys(report.fleet.unjudged, _UNJUDGED)
    for number, one in enumerate(found):
        names = {name for subject in one.subjects for name in nodes_in(subject, known)}
        if len(names) == len(known) > 1 and not one.condemns:
            continue
        for name in names:
            if name not in given and (name in out or not one.condemns):
                letter, css, words = _OF[one.outcome]
                given[name] = Mark(letter, css, f"{words}: {one.check}", number)
    for name in out:
        given.setdefault(name, Mark("F", "fail", "not ready"))
    return given


def nodes(report: Report, found: Sequence[Finding]) -> Html:
    """Draw all of them."""
    given = marks(report, found)
    leaves = report.fleet.leaves
    groups: dict[str, list[str]] = {}
    for at, name in enumerate(sorted(report.fleet.nodes, key=natural)):
        groups.setdefault(leaves.get(name, "") if leaves else str(at // _BLOCK), []).append(name)
    few = len(report.fleet.nodes) <= NAMED
    how = f"by {many(len(groups), 'leaf switch')}".replace("switchs", "switches")
    note = (
        f"{how}. " if leaves else "No leaf switches are known: in order of name. "
    ) + "Point at a square to read it; a letter leads to its finding."
    rows = [
        _row(leaf, names, given, few=few, leaves=bool(leaves))
        for leaf, names in sorted(groups.items(), key=lambda one: natural(one[0]))
    ]
    return section(
        "nodes",
        "Nodes",
        tag("p", *_legend(given, len(report.fleet.nodes)), class_="legend"),
        tag("div", *rows, class_="grid" + (" named" if few else "")),
        note=note[:1].upper() + note[1:],
    )


def _row(
    leaf: str, names: Sequence[str], given: Mapping[str, Mark], *, few: bool, leaves: bool
) -> Html:
    bad = sum(given.get(name, READY).css in ("fail", "flaky", "unknown") for name in names)
    heading = (leaf or "no leaf known") if leaves else folded(names)
    return tag(
        "div",
        tag(
            "h3",
            tag("span", heading, class_="leaf", title=folded(names)),
            tag("span", f"{bad} of {len(names)}" if bad else "", class_="count"),
        ),
        tag("ul", *(_square(name, given.get(name, READY), few=few) for name in names)),
        class_="rack",
    )


def _square(name: str, mark: Mark, *, few: bool) -> Html:
    words = f"{name}: {mark.words}"
    label = tag("i", name) if few else None
    if mark is READY:
        return tag("li", label, title=name, class_="n fine")
    link = mark.finding is not None
    inner = tag(
        "a" if link else "span",
        tag("b", mark.letter),
        label,
        href=f"#f{mark.finding}" if link else None,
        aria_label=words,
    )
    return tag("li", inner, title=words, class_=f"n {mark.css}")


def _legend(given: Mapping[str, Mark], total: int) -> Iterator[Html]:
    kinds: dict[tuple[str, str, str], int] = {}
    for mark in given.values():
        key = (mark.letter, mark.css, mark.words.partition(":")[0])
        kinds[key] = kinds.get(key, 0) + 1
    fine = (READY.letter, READY.css, READY.words)
    for (letter, css, words), number in [(fine, total - len(given)), *kinds.items()]:
        square = tag("span", tag("b", letter), class_=f"n {css}", aria_hidden="true")
        yield join(tag("span", square, f" {number:,} {words}", class_="key"), " ")
