"""Reports of single waves, as runs write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from preflight.core.registry import Entry
from preflight.report.document import CoverageRow, PairRow, Report
from preflight.report.findings import counts
from preflight.report.ready import exit_code, fleet_row, readiness, verdict_row
from preflight.verdict import ok

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from preflight.verdict import Verdict


def on(check: str, *nodes: str, verdict: Verdict | None = None) -> Entry:
    """One verdict; without a node: on the whole fleet."""
    return Entry(check, "-".join(nodes) or "fleet:all", nodes, verdict or ok("fine"))


def pair(a: str, b: str, number: int = 0) -> PairRow:
    """A pair that was measured."""
    return PairRow(a=a, b=b, rail=0, round=number, backend="nccl", state="measured", sizes=())


def report(
    nodes: Sequence[str],
    entries: Iterable[Entry] = (),
    pairs: Sequence[PairRow] = (),
    **more: Any,
) -> Report:
    """A wave of these nodes, each of them reached."""
    every = [*(on("reach.answer", name) for name in nodes), *entries]
    ready = readiness(nodes, every, strict=False)
    total = len(nodes) * (len(nodes) - 1) // 2
    coverage = CoverageRow(
        rounds=1, rounds_total=1, seed=1, pairs=total, pairs_run=len(pairs), pairs_known=None,
        runs_left=None, topology="", leaf_pairs=0, leaf_pairs_run=0, leaf_pairs_known=None,
    )  # fmt: skip
    values: dict[str, Any] = {
        "preflight": "0", "run": "x", "started": "2026-11-22T01:00:00+00:00", "seconds": 1.0,
        "tier": "deep", "exit": exit_code(every, ready),
        "interrupted": False, "fleet": fleet_row(nodes, "fleet.toml", ready, {}),
        "expected": len(every), "missing": 0,
        "counts": {str(outcome): number for outcome, number in counts(every).items()},
        "verdicts": tuple(map(verdict_row, every)), "pairs": tuple(pairs), "blames": (),
        "suspicions": (), "coverage": coverage if pairs else None,
    }  # fmt: skip
    return Report(**{**values, **more})
