"""Reports made up for the page, its neighbours and what is told of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.core.registry import Entry
from preflight.fleet.nodeset import fold
from preflight.report.document import FleetRow, PairRow, Report, SizeRow
from preflight.report.findings import counts
from preflight.report.ready import exit_code, readiness, verdict_row
from preflight.verdict import Outcome, Verdict, fail, ok

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BENT = fail("7 of 8 GPUs answer", advice="look for Xid 79; drain, power-cycle, recheck")


def report(
    nodes: Sequence[str],
    bad: Mapping[tuple[str, str], Verdict] | None = None,
    *,
    checks: Sequence[str] = ("gpu.count", "gpu.ecc"),
    leaves: Mapping[str, str] | None = None,
    started: str = "2026-11-22T02:00:00+00:00",
    pairs: Sequence[PairRow] = (),
) -> Report:
    """Every check on every node is fine, but for (check, node) in `bad`."""
    said = bad or {}
    entries = [
        Entry(check, name, (name,), said.get((check, name), ok("as expected")))
        for check in checks
        for name in nodes
    ]
    ready = readiness(nodes, entries, strict=False)
    by_outcome = counts(entries)
    return Report(
        preflight="0.1.0",
        run="ab" * 16,
        started=started,
        seconds=41.0,
        tier="quick",
        exit=exit_code(entries, ready),
        interrupted=False,
        fleet=FleetRow(
            nodes=tuple(nodes),
            folded=folded(nodes),
            origin="fleet.toml",
            ready=ready.ready,
            not_ready=ready.not_ready,
            unjudged=ready.unjudged,
            apart=ready.apart,
            exclude=folded(ready.not_ready),
            leaves=dict(leaves or {}),
        ),
        expected=len(entries),
        missing=by_outcome[Outcome.MISSING],
        counts={str(outcome): number for outcome, number in by_outcome.items()},
        verdicts=tuple(map(verdict_row, entries)),
        pairs=tuple(pairs),
        blames=(),
        suspicions=(),
    )


def folded(names: Sequence[str]) -> str:
    """As a run folds them; names that no inventory lets in are joined."""
    try:
        return fold(names)
    except Exception:  # noqa: BLE001  ClusterShell's own kinds, of names that are none
        return ",".join(names)


def pair(a: str, b: str, busbw_gbs: float | None, rail: int = 0) -> PairRow:
    """One measured pair at one size."""
    return PairRow(
        a=a,
        b=b,
        rail=rail,
        round=0,
        backend="nccl",
        state="measured",
        sizes=(
            SizeRow(
                size_bytes=1 << 30,
                iterations=20,
                busbw_gbs=busbw_gbs,
                p50_us=5000.0,
                p99_us=5200.0,
                max_us=6000.0,
            ),
        ),
    )
