"""The findings of a report that was written earlier, by the code that a run finds them with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from preflight.check import FLEET
from preflight.fabric.blame import Blame
from preflight.ledger import Entry
from preflight.report.findings import Finding, findings, suspicions
from preflight.report.since import nodes_in
from preflight.verdict import Verdict

if TYPE_CHECKING:
    from typing import Any

    from preflight.report.document import BlameRow, Report, VerdictRow


def found_in(report: Report) -> tuple[Finding, ...]:
    """Find the causes again."""
    entries = entries_of(report)
    suspected = suspicions(entries, len(report.fleet.nodes) - len(report.fleet.left_out))
    return findings(entries, tuple(map(blame_of, report.blames)), suspected)


def entries_of(report: Report) -> tuple[Entry, ...]:
    """Every verdict as it was entered."""
    known = frozenset(report.fleet.nodes)
    return tuple(_entry(row, known) for row in report.verdicts)


def _entry(row: VerdictRow, known: frozenset[str]) -> Entry:
    nodes = () if row.subject == FLEET else tuple(nodes_in(row.subject, known))
    return Entry(row.check, row.subject, nodes, verdict_of(row))


def verdict_of(row: VerdictRow) -> Verdict:
    """The verdict that a row tells."""
    return msgspec.convert(row, Verdict, from_attributes=True)


def blame_of(row: BlameRow) -> Blame:
    """Whom a row blames."""
    kind: Any = row.kind  # a report of a later preflight may know more kinds: shown all the same
    return Blame(
        kind=kind,
        component=row.component,
        sentence=row.sentence,
        confidence=row.confidence,
        advice=row.advice,
        pairs=row.pairs,
        rail=row.rail,
        culprits=row.culprits,
    )
