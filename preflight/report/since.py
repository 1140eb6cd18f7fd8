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

_ABOUT = 5
"""Fleets grow and shrink: runs are comparable up to a fifth more or fewer nodes."""

Name = Annotated[str, Meta(max_length=512)]
Number = Annotated[int, Meta(ge=0, le=1 << 40)]


class Bad(Struct, frozen=True, array_like=True, order=True):
    """A subject that failed (a node, an endpoint or a path), and the check."""

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
    bad: Annotated[tuple[Bad, ...], Meta(max_length=MOST_BAD)]
    busbw_p50_gbs: float | None = None
    busbw_p5_gbs: float | None = None
    """Quantiles over all pairs at the largest size of the sweep: the median and the slow end."""


def at(seconds: float) -> str:
    """Write a time in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def summary_of(report: Report, all_findings: Sequence[Finding]) -> RunSummary:
    """Sum up a run."""
    bad = {
        Bad(finding.check, name)
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


def alike(earlier: Sequence[RunSummary], now: RunSummary) -> tuple[RunSummary, ...]:
    """The runs of the same tier with about as many nodes: a run on two nodes is not comparable."""
    return tuple(
        run
        for run in earlier
        if run.tier == now.tier and abs(run.nodes - now.nodes) * _ABOUT <= now.nodes
    )


def before(earlier: Sequence[RunSummary], now: RunSummary) -> RunSummary | None:
    """The run to compare with: the last that is alike, else the last one."""
    ran = alike(earlier, now) or earlier
    return ran[-1] if ran else None


def _speeds(report: Report) -> list[float]:
    sizes = [(size.size_bytes, size.busbw_gbs) for pair in report.pairs for size in pair.sizes]
    largest = max((size for size, speed in sizes if speed is not None), default=0)
    return sorted(speed for size, speed in sizes if size == largest and speed is not None)


_JUDGED = (Outcome.OK, Outcome.WARN, Outcome.WAIVED)


class Since(Struct, frozen=True, kw_only=True):
    """The four kinds of change, each in order; `before` is the run compared with."""

    before: RunSummary
    new: tuple[Bad, ...]
    still: tuple[Bad, ...]
    recovered: tuple[Bad, ...]
    unseen: tuple[Bad, ...]


def since(before: RunSummary, now: RunSummary, report: Report) -> Since:
    """Compare a run with an earlier one."""
    then, here = set(before.bad), set(now.bad)
    absent = sorted(then - here)
    passed = _passed(report, absent)
    return Since(
        before=before,
        new=tuple(sorted(here - then)),
        still=tuple(sorted(here & then)),
        recovered=tuple(bad for bad in absent if bad in passed),
        unseen=tuple(bad for bad in absent if bad not in passed),
    )


def _passed(report: Report, absent: Iterable[Bad]) -> set[Bad]:
    """Those whose subject passed the same check in this run."""
    ready, fleet = frozenset(report.fleet.ready), frozenset(report.fleet.nodes)
    judged: defaultdict[str, set[str]] = defaultdict(set)
    for row in report.verdicts:
        if row.outcome in _JUDGED:
            judged[row.check].update(_about(row, fleet))

    def again(bad: Bad) -> bool:
        passed = judged[bad.check]
        # Checks of pairs judge "h2 rail 3" and "pair h1-h2" too.
        nodes = nodes_in(bad.subject, fleet)
        both = bool(nodes) and ready.issuperset(nodes) and passed.issuperset(nodes)
        return both or bad.subject in passed

    return set(filter(again, absent))


def _about(row: VerdictRow, fleet: frozenset[str]) -> Iterable[str]:
    if row.subject == FLEET or row.subject in fleet:
        return (row.subject,)
    return (row.subject, f"pair {row.subject}", *nodes_in(row.subject, fleet))


def nodes_in(subject: str, known: frozenset[str]) -> Sequence[str]:
    """The nodes of a subject: "h1", "h1-h2", "pair h1-h2", "h1 rail 3"; names may hold dashes."""
    if subject in known:
        return (subject,)
    plain = subject.removeprefix("pair ").partition(" rail ")[0]
    if plain in known:
        return (plain,)
    return split_pair(plain, known) or ()


def found_in(report: Report) -> tuple[Finding, ...]:
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


def nodes_of(subject: str, known: frozenset[str]) -> tuple[str, ...]:
    """The nodes of a verdict; none for one on the whole fleet."""
    return () if subject == FLEET else tuple(nodes_in(subject, known))


def verdict_of(row: VerdictRow) -> Verdict:
    """The verdict of a row."""
    return msgspec.convert(row, Verdict, from_attributes=True)
