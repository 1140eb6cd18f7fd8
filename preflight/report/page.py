"""`report.html`: one run on one page, on which a browser runs no script but preflight's.

Its content security policy allows our style and our script by their hash and nothing else: the
page contacts no address, and markup that slipped through could neither load nor run anything.

A letter and a shape show each state besides the colour. Only nodes that are not fine are links, so
that the keyboard reaches a few squares and not a thousand.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from markupsafe import Markup
from msgspec import Struct

from preflight.core.registry import page_of
from preflight.core.statistics import grouped
from preflight.core.text import natural
from preflight.report.document import Report, moment
from preflight.report.fabric_page import sharpness
from preflight.report.findings import COUNTED, Finding
from preflight.report.markup import date, duration, escaped, file, folded, plural, style, template
from preflight.report.since import Changes, RunSummary, compare, nodes_in, peer_runs, summary_of
from preflight.report.terminal import count_words, extent_rows, title
from preflight.verdict import Outcome

PAGE = "report.html"
"""The file in the run's folder."""

LARGEST = 2_000_000
"""Bytes of the page, which must open on a jump host and fit into a mail."""

_LEAST_FABRIC = 100_000
_PARTS = (
    ("changes", "What changed"),
    ("nodes", "Nodes"),
    ("findings", "Findings"),
    ("fabric", "Fabric"),
    ("trends", "Trends"),
    ("coverage", "Coverage"),
)
_STYLE = style() + file("look.css")
_SCRIPT = file("act.js")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


_POLICY = (
    f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; "
    "base-uri 'none'; form-action 'none'"
)
_BY_EXIT = {0: ("good", "✓"), 1: ("bad", "✗")}
_EXIT_WORDS = (
    *("ready", "not ready", "interrupted", "not all was judged", "wrong usage", "nothing to check"),
)
"""What each exit code means."""


def page(
    report: Report,
    findings: Sequence[Finding],
    fabric: Callable[[int], str] | None = None,
    *,
    earlier: Sequence[RunSummary] = (),
    drains: Collection[str] = (),
) -> str:
    """Draw the whole page.

    `fabric` draws the sweep in at most the given number of bytes; None: there was no sweep.
    `earlier`: runs of the same folder before this one, oldest first. `drains`: checks for which a
    node may be drained.
    """

    def draw(sections: Sequence[str]) -> str | None:
        if fabric is None:
            return None
        size = sum(len(section.encode()) for section in sections)
        room = max(_LEAST_FABRIC, LARGEST - size - len(_STYLE) - 20_000)
        return fabric(room).replace("h2>", "h3>")

    # If one shared cause is likelier than so many faults, no drain is offered.
    drains = () if report.suspicions else drains
    kind, mark = _BY_EXIT.get(report.exit, ("open", "!"))
    headline = title(report)
    this_run = summary_of(report, findings)
    changes = compare(earlier, this_run, report)
    runs = (*peer_runs(earlier, this_run), this_run)
    has_part = {
        "changes": changes is not None,
        "findings": bool(findings),
        "fabric": fabric is not None,
        "trends": len(runs) >= _LEAST_RUNS,
    }
    drawing = template("page.html.j2").render(
        report=report,
        fleet=report.fleet,
        kind=kind,
        mark=mark,
        headline=headline[:1].upper() + headline[1:],
        page_title=f"preflight: {headline} · {moment(report.started):%d %b %Y} · "
        f"{plural(len(report.fleet.nodes), 'node')}",
        which=[
            date(report.started),
            f"tier {report.tier}",
            duration(report.seconds),
            f"nodes from {report.fleet.origin}",
            f"exit {report.exit}, {_EXIT_WORDS[report.exit]}",
        ],
        figures=_figures(report),
        **_change_columns(changes),
        **_nodes(report, findings),
        found=[_card_of(row, frozenset(report.fleet.nodes), drains) for row in findings],
        most_found=MOST_FINDINGS,
        **_trend_cards(runs),
        **_coverage(report),
        fabric=draw,
        parts=_PARTS,
        shown=[name for name, _ in _PARTS if has_part.get(name, True)],
        pages={
            check: Markup("\n").join(words.splitlines())
            for check in dict.fromkeys(finding.check for finding in findings[:MOST_FINDINGS])
            if (words := page_of(check))
        },
        most_alike=_MOST_ALIKE,
        policy=_POLICY,
        style=_STYLE,
        script=_SCRIPT,
    )
    return f"<!DOCTYPE html>\n{drawing}\n"


def _figures(report: Report) -> list[tuple[int | None, str]]:
    fleet, pairs = report.fleet, report.coverage.pairs_run if report.coverage else None
    figures = (
        (len(fleet.nodes), "node", ""),
        (len(fleet.ready), "node", " ready"),
        (len(fleet.not_ready), "node", " not ready"),
        (len(fleet.unjudged) or None, "node", " not judged"),
        (pairs, "pair", " measured"),
        (report.expected, "verdict", " expected"),
        (report.missing, "verdict", " missing"),
    )
    return [(number, f"{noun}{'s' * (number != 1)}{suffix}") for number, noun, suffix in figures]


def _change_columns(changes: Changes | None) -> dict[str, Any]:
    if changes is None:
        return {"changed_note": "", "columns": ()}
    past = changes.reference
    ready = f"{past.ready:,} of {past.nodes:,} nodes were ready then"
    columns = [
        ("new", "+", "New", changes.new),
        ("still", "=", "Still", changes.still),
        ("healed", "✓", "Recovered", changes.recovered),
        *([("unseen", "-", "Not judged again", changes.unseen)] if changes.unseen else []),
    ]
    compared = f"Compared with the run of {date(past.started)} (tier {past.tier}; {ready})"
    if not any(rows for *_, rows in columns):
        return {"changed_note": f"{compared}: no change.", "columns": ()}
    return {
        "changed_note": f"{compared}.",
        "columns": [
            (*look, len(rows), list(grouped((bad.check, bad.subject) for bad in rows).items()))
            for *look, rows in columns
        ],
    }


NAMED = 48
"""The most nodes with which a square has room for its name."""

_BLOCK = 32
"""Nodes in a row if no leaf switch is known."""


class Mark(Struct, frozen=True):
    """How a node's square looks, and the finding to which it links."""

    letter: str
    css: str
    words: str
    finding: int | None = None


_UNJUDGED = Mark("-", "open", "not judged")
_LOOK: Mapping[Outcome, tuple[str, str, str]] = {
    Outcome.FAIL: ("F", "fail", "failed"),
    Outcome.FLAKY: ("~", "flaky", "flaky"),
    Outcome.UNKNOWN: ("?", "unknown", "unknown"),
    Outcome.BROKEN: ("B", "open", "a fault of preflight"),
    Outcome.MISSING: ("L", "open", "its verdict is missing"),
    Outcome.WARN: ("w", "warn", "warned"),
    Outcome.WAIVED: ("v", "warn", "waived"),
}


def marks(report: Report, findings: Sequence[Finding]) -> dict[str, Mark]:
    """The mark of each node that is not fine, by its worst finding; `findings` is worst first.

    A warning that all nodes share is about the fleet, and would only hide the others.
    """
    nodes = frozenset(report.fleet.nodes)
    not_ready = frozenset(report.fleet.not_ready)
    by_node = dict.fromkeys(report.fleet.unjudged, _UNJUDGED)
    for number, finding in enumerate(findings):
        names = {name for subject in finding.subjects for name in nodes_in(subject, nodes)}
        if len(names) == len(nodes) > 1 and not finding.makes_not_ready:
            continue
        for name in names:
            if name not in by_node and (name in not_ready or not finding.makes_not_ready):
                letter, css, words = _LOOK[finding.outcome]
                by_node[name] = Mark(letter, css, f"{words}: {finding.check}", number)
    for name in not_ready:
        by_node.setdefault(name, Mark("F", "fail", "not ready"))
    return by_node


def _nodes(report: Report, findings: Sequence[Finding]) -> dict[str, Any]:
    """Every node in the row of its leaf switch, and the legend of the marks."""
    by_node, leaves, every = marks(report, findings), report.fleet.leaves, report.fleet.nodes
    groups = grouped(
        (leaves.get(name, "") if leaves else str(index // _BLOCK), name)
        for index, name in enumerate(sorted(every, key=natural))
    )
    by_leaf = f"By {len(groups):,} leaf switch{'es' * (len(groups) != 1)}"
    order = by_leaf if leaves else "No leaf switches are known: in order of name"
    faulty = {name for name, mark in by_node.items() if mark.css in ("fail", "flaky", "unknown")}
    racks = [
        ((leaf or "no leaf known") if leaves else folded(names), names, len(faulty & {*names}))
        for leaf, names in sorted(groups.items(), key=lambda group: natural(group[0]))
    ]
    looks = [(mark.letter, mark.css, mark.words.partition(":")[0]) for mark in by_node.values()]
    return {
        "nodes_note": f"{order}. Point at a square to read it; a letter leads to its finding.",
        "marks": by_node,
        "few": len(every) <= NAMED,
        "legend": [
            ("", "fine", "without a finding", len(every) - len(by_node)),
            *((*look, number) for look, number in Counter(looks).items()),
        ],
        "racks": [rack for rack in racks if not by_node.keys().isdisjoint(rack[1])],
        "fine_racks": [rack for rack in racks if by_node.keys().isdisjoint(rack[1])],
    }


_MOST_ALIKE = 64
"""The most findings in their own words under one that stands for all."""


MOST_FINDINGS = 200
"""The most findings on the page; if there are more, it says how many."""

_WORDS = {Outcome.BROKEN: "fault of preflight", Outcome.WARN: "warning"}
_REASON = 120
"""Characters of a drain reason: Slurm's tools show one line of it."""


def _card_of(finding: Finding, fleet: frozenset[str], drains: Collection[str]) -> dict[str, Any]:
    """One finding, and what to paste for it."""
    letter, css, _ = _LOOK[finding.outcome]
    nodes = sorted({n for subject in finding.subjects for n in nodes_in(subject, fleet)})
    exclude = folded(nodes)
    also = f"also {', '.join(finding.also)}" if finding.also else ""
    verdicts = plural(finding.verdicts, "verdict") if finding.verdicts > 1 else ""
    may_drain = finding.makes_not_ready and finding.check in drains
    return {
        "finding": finding,
        "letter": letter,
        "css": css,
        "outcome": _WORDS.get(finding.outcome, str(finding.outcome)),
        "advice": "" if finding.outcome is Outcome.WAIVED else finding.advice,
        "also": " · ".join(filter(None, (also, verdicts))),
        "nodes": nodes,
        # The page's filter does not move such a finding: its names would fill the page.
        "of_most": len(nodes) > max(1, len(fleet) // 2),
        "exclude": exclude,
        "drain": drain_command(exclude, finding) if may_drain else "",
    }


def drain_command(nodes: str, finding: Finding) -> str:
    """The command that drains these nodes; its reason has the form of our hook's reasons."""
    readable = "".join(c if c.isalnum() or c in " .:/()%+-" else " " for c in finding.sentence)
    sentence = " ".join(readable.encode("ascii", "ignore").decode().split())
    reason = f"pf:{finding.check} {sentence}"[:_REASON].rstrip()
    return f"scontrol update NodeName={shlex.quote(nodes)} State=DRAIN Reason={shlex.quote(reason)}"


_WIDTH, _HEIGHT, _EDGE = 220.0, 44.0, 4.0
_LEAST_RUNS = 2


def _trend_cards(nights: Sequence[RunSummary]) -> dict[str, Any]:
    """A card for each number that two nights or more have; nights are oldest first."""
    cards = (
        _card("Nodes not ready", [len(night.not_ready) for night in nights]),
        _card("Findings, by subject", [len(night.bad) for night in nights]),
        _card("Busbw of the typical pair", [n.busbw_p50_gbs for n in nights], " GB/s", 2),
        _card("Busbw that 95 % of pairs reach", [n.busbw_p5_gbs for n in nights], " GB/s", 2),
        _card("Verdicts missing", [night.missing for night in nights]),
        _card("Time taken", [night.seconds / 60 for night in nights], " min", 1),
    )
    first = date(nights[0].started)
    return {
        "nights": len(nights),
        "trends_note": f"{plural(len(nights), 'run')}, {first} to this one, left to right.",
        "cards": [card for card in cards if card],
    }


def _card(
    heading: str, values: Sequence[float | None], unit: str = "", digits: int = 0
) -> dict[str, Any] | None:
    numbers = [value for value in values if value is not None]
    if len(numbers) < _LEAST_RUNS:
        return None

    def write(value: float) -> str:
        return f"{value:,.{digits}f}{unit}"

    low, high = min(numbers), max(numbers)
    path, end = _line(values, low, high)
    return {
        "heading": heading,
        "now": write(numbers[-1]),
        "spread": f"{write(low)} to {write(high)}" if high > low else "no change",
        "path": path,
        "end": end,
    }


def _line(values: Sequence[float | None], low: float, high: float) -> tuple[str, list[str]]:
    """An SVG path and its end; a night without the value leaves a gap."""
    step = (_WIDTH - 2 * _EDGE) / max(1, len(values) - 1)
    tall = _HEIGHT - 2 * _EDGE
    path, pen, end = "", "M", ["0.0", "0.0"]
    for index, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        share = (value - low) / (high - low) if high > low else 0.5
        end = [f"{_EDGE + index * step:.1f}", f"{_EDGE + (1 - share) * tall:.1f}"]
        path += pen + " ".join(end)
        pen = "L"
    return path, end


def _coverage(report: Report) -> dict[str, Any]:
    """Coverage, sensitivity, what was not run and why, the inventory's overrides, every check."""
    by_check: dict[str, Counter[Outcome]] = {}
    for row in report.verdicts:
        by_check.setdefault(row.check, Counter())[row.outcome] += 1
    used = {row.outcome for row in report.verdicts}
    return {
        "checked": [*extent_rows(report), ("verdicts", count_words(report.counts))],
        "sharpness": sharpness(report.sensitivity),
        "reasons": Counter(
            row.sentence for row in report.verdicts if row.outcome is Outcome.NOT_RUN
        ),
        "by_check": by_check,
        "counted": [(outcome, word) for outcome, word in COUNTED.items() if outcome in used],
    }


def wave_links(folders: Sequence[str]) -> str:
    """List the waves' folders, each with a link to its page."""
    names = map(escaped, folders)
    links = "".join(f'<li><a href="{n}/report.html#fabric">{n}</a></li>' for n in names)
    note = "Pairs were measured within each wave; its page has the details."
    return f'<p class="small">{note}</p><ul>{links}</ul>'
