"""Compares a run with an earlier one: what is new, still bad, recovered, or not checked again.

A node has recovered only when the same check passes; a finding that is merely gone does not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from preflight.check import FLEET
from preflight.core.registry import Entry
from preflight.core.statistics import median, nearest_rank
from preflight.fleet.nodeset import split_pair
from preflight.report.document import Report, VerdictRow, row_of
from preflight.report.findings import Finding, findings, suspicions
from preflight.verdict import Outcome, Verdict

MOST_BAD = 20_000
"""The most bad subjects that are stored; with more of them, which are new hardly matters."""

_SIZE_FACTOR = 5
"""Fleets grow and shrink: runs are comparable up to a fifth more or fewer nodes."""

Name = Annotated[str, Meta(max_length=512)]
Number = Annotated[int, Meta(ge=0, le=1 << 40)]


class BadSubject(Struct, frozen=True, array_like=True, order=True):
    """A subject that failed a check: a node, an endpoint or a path."""

    check: Name
    subject: Name


class RunSummary(Struct, frozen=True, kw_only=True):
    """A run, summed up in a few numbers and names."""

    run: Name
    started: Name
    seconds: float
    tier: Name
    exit: Annotated[int, Meta(ge=0, le=5)]
    nodes: Number
    ready: Number
    not_ready: Annotated[tuple[Name, ...], Meta(max_length=MOST_BAD)]
    missing: Number
    bad: Annotated[tuple[BadSubject, ...], Meta(max_length=MOST_BAD)]
    busbw_p50_gbs: float | None = None
    busbw_p5_gbs: float | None = None
    """Quantiles over all pairs at the largest size of the sweep: the median and the slow end."""


def utc_time(seconds: float) -> str:
    """Write a time in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def summary_of(report: Report, all_findings: Sequence[Finding]) -> RunSummary:
    """Sum up a run."""
    bad = {
        BadSubject(finding.check, name)
        for finding in all_findings
        if finding.makes_not_ready
        for name in finding.subjects
    }
    speeds = _speeds(report)
    return row_of(
        RunSummary,
        report,
        nodes=len(report.fleet.nodes),
        ready=len(report.fleet.ready),
        not_ready=report.fleet.not_ready[:MOST_BAD],
        bad=tuple(sorted(bad)[:MOST_BAD]),
        busbw_p50_gbs=median(speeds) if speeds else None,
        busbw_p5_gbs=nearest_rank(speeds, 0.05) if speeds else None,
    )


def peer_runs(earlier: Sequence[RunSummary], now: RunSummary) -> tuple[RunSummary, ...]:
    """Select the runs of the same tier with about as many nodes."""
    return tuple(
        run
        for run in earlier
        if run.tier == now.tier and abs(run.nodes - now.nodes) * _SIZE_FACTOR <= now.nodes
    )


def _speeds(report: Report) -> list[float]:
    sizes = [(size.size_bytes, size.busbw_gbs) for pair in report.pairs for size in pair.sizes]
    largest = max((size for size, speed in sizes if speed is not None), default=0)
    return sorted(speed for size, speed in sizes if size == largest and speed is not None)


_PASSED = (Outcome.OK, Outcome.WARN, Outcome.WAIVED)


class Changes(Struct, frozen=True, kw_only=True):
    """The four kinds of change, each in order; `reference` is the run compared with."""

    reference: RunSummary
    new: tuple[BadSubject, ...]
    still: tuple[BadSubject, ...]
    recovered: tuple[BadSubject, ...]
    unseen: tuple[BadSubject, ...]


def compare(earlier: Sequence[RunSummary], now: RunSummary, report: Report) -> Changes | None:
    """Compare a run with the last of its peers, else with the last run; None if it is the first."""
    runs = peer_runs(earlier, now) or earlier
    if not runs:
        return None
    past, current = set(runs[-1].bad), set(now.bad)
    gone = sorted(past - current)
    passed = _passed(report, gone)
    return Changes(
        reference=runs[-1],
        new=tuple(sorted(current - past)),
        still=tuple(sorted(current & past)),
        recovered=tuple(bad for bad in gone if bad in passed),
        unseen=tuple(bad for bad in gone if bad not in passed),
    )


def _passed(report: Report, gone: Iterable[BadSubject]) -> set[BadSubject]:
    """Those whose subject passed the same check in this run."""
    ready, fleet = frozenset(report.fleet.ready), frozenset(report.fleet.nodes)
    passed_by_check: defaultdict[str, set[str]] = defaultdict(set)
    for row in report.verdicts:
        if row.outcome in _PASSED:
            passed_by_check[row.check].update(_subjects_of(row, fleet))

    def has_passed(row: BadSubject) -> bool:
        passed = passed_by_check[row.check]
        # Checks of pairs judge "h2 rail 3" and "pair h1-h2" too.
        nodes = nodes_in(row.subject, fleet)
        all_nodes = bool(nodes) and ready.issuperset(nodes) and passed.issuperset(nodes)
        return all_nodes or row.subject in passed

    return set(filter(has_passed, gone))


def _subjects_of(row: VerdictRow, fleet: frozenset[str]) -> Iterable[str]:
    if row.subject == FLEET or row.subject in fleet:
        return (row.subject,)
    return (row.subject, f"pair {row.subject}", *nodes_in(row.subject, fleet))


def nodes_in(subject: str, nodes: frozenset[str]) -> Sequence[str]:
    """The nodes of a subject: "h1", "h1-h2", "pair h1-h2", "h1 rail 3"; names may hold dashes."""
    if subject in nodes:
        return (subject,)
    name = subject.removeprefix("pair ").partition(" rail ")[0]
    if name in nodes:
        return (name,)
    return split_pair(name, nodes) or ()


def report_findings(report: Report) -> tuple[Finding, ...]:
    """The findings of a report that was read again."""
    entries = entries_of(report)
    suspected = suspicions(entries, len(report.fleet.nodes) - len(report.fleet.left_out))
    return findings(entries, report.blames, suspected)


def entries_of(report: Report) -> tuple[Entry, ...]:
    """Every verdict of a report, as an entry."""
    fleet = frozenset(report.fleet.nodes)
    return tuple(
        Entry(row.check, row.subject, nodes_of(row.subject, fleet), verdict_of(row))
        for row in report.verdicts
    )


def nodes_of(subject: str, nodes: frozenset[str]) -> tuple[str, ...]:
    """The nodes of a verdict; none for one on the whole fleet."""
    return () if subject == FLEET else tuple(nodes_in(subject, nodes))


def verdict_of(row: VerdictRow) -> Verdict:
    """The verdict of a row."""
    return msgspec.convert(row, Verdict, from_attributes=True)
