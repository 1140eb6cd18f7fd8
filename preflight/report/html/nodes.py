"""The body of the page: the findings, every node as a square, and what was not checked.

State is told by a letter and by shape beside the colour; only what is not fine is a link, so that
the keyboard reaches a handful of squares and not a thousand.
"""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.core.text import printable
from preflight.fleet.nodeset import natural
from preflight.report.findings import COUNTED
from preflight.report.header import after
from preflight.report.html.markup import Html, copied, folded, join, many, section, tag
from preflight.report.picture.histograms import sharpness
from preflight.report.sensitivity import coverage_words, missed_words
from preflight.report.since import nodes_in
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

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
