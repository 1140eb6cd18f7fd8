"""What a night changed, in a few lines: what the morning's first look is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fleet.nodeset import fold
from preflight.report.night import before, night_of
from preflight.report.since import since

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from preflight.report.document import Report
    from preflight.report.findings import Finding
    from preflight.report.night import Bad, Night

_MOST = 5
"""Checks that are named of each kind; the page has them all."""


def change_lines(
    report: Report, found: Sequence[Finding], earlier: Sequence[Night]
) -> list[tuple[str, str]]:
    """Label and text of each line; nothing where no earlier night is known."""
    now = night_of(report, found)
    last = before(earlier, now)
    if last is None:
        return []
    told = since(last, now, report)
    then = told.before.started[:16].replace("T", " ")
    counts = f"{len(told.new)} new, {len(told.still)} still, {len(told.recovered)} recovered"
    unseen = f", {len(told.unseen)} not judged again" if told.unseen else ""
    lines = [("since", f"{then} UTC: {counts}{unseen}")]
    for label, bad in (("new", told.new), ("recovered", told.recovered)):
        if bad:
            lines.append((label, _named(bad, report.fleet.nodes)))
    return lines


def _named(bad: Iterable[Bad], nodes: Collection[str]) -> str:
    """Check by check, folded: "gpu.count gpu[003,005]; fabric.allreduce pair gpu001-gpu002"."""
    by_check: dict[str, list[str]] = {}
    for one in bad:
        by_check.setdefault(one.check, []).append(one.subject)
    said = [f"{check} {_folded(names, nodes)}" for check, names in by_check.items()]
    more = f"; and {len(said) - _MOST} more checks" if len(said) > _MOST else ""
    return "; ".join(said[:_MOST]) + more


def _folded(names: Sequence[str], nodes: Collection[str]) -> str:
    plain = fold(name for name in names if name in nodes)
    return ", ".join(filter(None, (plain, *(name for name in names if name not in nodes))))
