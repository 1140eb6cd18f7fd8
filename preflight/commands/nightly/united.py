"""One report for the whole sweep: what every wave found, as if it had been one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.check import Tier
from preflight.fleet.nodeset import fold
from preflight.report.document import CoverageRow, FleetRow, Report
from preflight.report.findings import Finding, counts, findings, suspicions
from preflight.report.ready import counts_as_failure
from preflight.report.rebuilt import blame_of, entries_of
from preflight.report.rows import verdict_row
from preflight.sweeping.entries import of_the_fleet, on_node
from preflight.sweeping.joined import joined_overrides, joined_pairs, joined_shapes, most_missed
from preflight.verdict import Outcome, Verdict, not_run

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from preflight.ledger import Entry

NOBODY, INTERRUPTED, BROKE, CONDEMNED = 5, 2, 3, 1
"""Exit codes, as everywhere."""


class Part(Struct, frozen=True, kw_only=True):
    """One wave that left a report."""

    number: int
    """As a person counts: the first is 1."""
    report: Report


class Whole(Struct, frozen=True, kw_only=True):
    """What the waves do not know: the sweep around them."""

    sweep: str
    preflight: str
    started: str
    seconds: float
    tier: Tier
    strict: bool
    nodes: tuple[str, ...]
    origin: str
    leaves: Mapping[str, str] = {}
    left_out: Mapping[str, str]
    """Nodes that were not to be looked at, and why."""
    owed: Mapping[str, Verdict]
    """Nodes that were, and of which there is no report: `lost`, or stopped before their turn."""
    interrupted: bool
    coverage: CoverageRow | None


def owed_later(why: str) -> Verdict:
    """What stands for a node whose turn did not come."""
    return not_run(why, stopped=True)


def lost(why: str) -> Verdict:
    """What stands for a node whose wave left no report."""
    advice = "look into its wave's folder; to do it again: preflight sweep --resume"
    return Verdict(outcome=Outcome.LOST, sentence=why, advice=advice)


def unite(whole: Whole, parts: Sequence[Part]) -> tuple[Report, tuple[Finding, ...]]:
    """Join the waves' reports into one of the same schema, and their findings by cause."""
    reports = [part.report for part in parts]
    entries = _entries(whole, parts)
    suspected = suspicions(entries, len(whole.nodes) - len(whole.left_out))
    blames = tuple(row for report in reports for row in report.blames)
    by_outcome = counts(entries)
    united = Report(
        preflight=whole.preflight,
        run=whole.sweep,
        started=whole.started,
        seconds=round(whole.seconds, 3),
        tier=whole.tier,
        exit=_exit(whole, reports, entries),
        interrupted=whole.interrupted,
        fleet=_fleet(whole, reports),
        expected=len(entries),
        lost=by_outcome[Outcome.LOST],
        counts={str(outcome): number for outcome, number in by_outcome.items()},
        verdicts=tuple(verdict_row(entry) for entry in entries),
        pairs=joined_pairs(reports),
        blames=blames,
        suspicions=(*suspected.values(), *_of_waves(parts, suspected)),
        coverage=whole.coverage,
        missed=most_missed(reports),
        shapes=joined_shapes(reports),
        overrides=joined_overrides([report.overrides for report in reports]),
        measured_in=tuple(sorted({name for report in reports for name in report.measured_in})),
    )
    return united, findings(entries, tuple(map(blame_of, blames)), suspected)


def _entries(whole: Whole, parts: Sequence[Part]) -> tuple[Entry, ...]:
    """All verdicts: those on nodes and pairs as they are, those on each wave's whole as one."""
    own = [entry for part in parts for entry in entries_of(part.report) if entry.nodes]
    owed = [on_node(name, verdict) for name, verdict in whole.owed.items()]
    return (*own, *of_the_fleet({part.number: part.report for part in parts}), *owed)


def _fleet(whole: Whole, reports: Sequence[Report]) -> FleetRow:
    """Every node stands where its wave put it; whoever is in none was not judged."""
    ready = {name for report in reports for name in report.fleet.ready}
    bad = {name for report in reports for name in report.fleet.not_ready}
    not_ready = tuple(name for name in whole.nodes if name in bad)
    return FleetRow(
        nodes=whole.nodes,
        folded=fold(whole.nodes),
        origin=whole.origin,
        ready=tuple(name for name in whole.nodes if name in ready - bad),
        not_ready=not_ready,
        unjudged=tuple(name for name in whole.nodes if name not in ready | bad),
        apart=tuple(pair for report in reports for pair in report.fleet.apart),
        exclude=fold(not_ready),
        left_out={name: whole.left_out[name] for name in whole.nodes if name in whole.left_out},
        leaves=dict(whole.leaves),
    )


def _exit(whole: Whole, reports: Sequence[Report], entries: Sequence[Entry]) -> int:
    """The worst of the waves, in the order that a run's own code has."""
    codes = {report.exit for report in reports}
    if whole.interrupted:
        return INTERRUPTED
    if codes <= {NOBODY} and not whole.owed:
        return NOBODY
    condemned = any(counts_as_failure(entry, strict=whole.strict) for entry in entries)
    if condemned or CONDEMNED in codes:
        return CONDEMNED
    return BROKE if whole.owed or codes - {0, NOBODY} else 0


def _of_waves(parts: Sequence[Part], suspected: Collection[str]) -> list[str]:
    """What looked like one shared cause to a wave, where the fleet does not say so by itself."""
    return [
        f"wave {part.number}, of {len(part.report.fleet.nodes)} nodes: {note}"
        for part in parts
        for note in part.report.suspicions
        if note.partition(" ")[0] not in suspected
    ]
