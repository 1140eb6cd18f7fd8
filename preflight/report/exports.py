"""A run in numbers for node_exporter's textfile collector: alert on the age of the last run first.

Names and labels are stable; docs/report.md lists them. Pairs come as quantiles only: a thousand
nodes would be half a million series.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.report.document import moment
from preflight.report.files import write_typed
from preflight.stats.quantiles import nearest_rank
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from prometheus_client import CollectorRegistry, Gauge

    from preflight.report.document import Report
    from preflight.report.findings import Finding

MODE = 0o644
"""node_exporter runs as nobody in particular."""

_SUFFIX = ".prom"
_QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)


def refuse_unread(path: Path) -> None:
    """Say before a run that nobody would read that file; UsageError."""
    if path.suffix != _SUFFIX:
        raise UsageError(
            f"--preflight-prometheus={path}: node_exporter reads *{_SUFFIX} only: name it so"
        )
    if not path.parent.is_dir():
        raise UsageError(f"--preflight-prometheus: there is no folder {path.parent}: make it")


def write_metrics(path: Path, report: Report, found: Sequence[Finding]) -> None:
    """Write them in one piece, readable for all; OSError, also for a link in the file's place."""
    write_typed(path, metrics(report, found), MODE)


def metrics(report: Report, found: Sequence[Finding]) -> bytes:
    """Give the text of the file."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    _run(registry, report)
    _nodes(registry, report)
    _verdicts(registry, report, found)
    _fabric(registry, report)
    return generate_latest(registry)


def _run(registry: CollectorRegistry, report: Report) -> None:
    started = moment(report.started).timestamp()
    ended = started + report.seconds
    _one(registry, "last_run_timestamp_seconds", "When the last run ended, Unix time", ended)
    _one(registry, "last_run_duration_seconds", "How long it ran", report.seconds)
    _one(registry, "last_run_exit_code", "Its exit code: 0 ready, 1 not ready", report.exit)
    whole = not report.interrupted and not report.lost and report.exit in (0, 1)
    _one(registry, "run_complete", "1: all that it owed was judged", whole)


def _nodes(registry: CollectorRegistry, report: Report) -> None:
    fleet = report.fleet
    states = _labelled(registry, "nodes", "Nodes by state", "state")
    by_state = {
        "ready": fleet.ready,
        "not_ready": fleet.not_ready,
        "unjudged": fleet.unjudged,
    }
    each = _labelled(
        registry, "node_ready", "1: ready, 0: not ready; none: it was not judged", "node"
    )
    for state, names in by_state.items():
        states.labels(state).set(len(names))
        for name in names if state != "unjudged" else ():
            each.labels(name).set(state == "ready")


def _verdicts(registry: CollectorRegistry, report: Report, found: Sequence[Finding]) -> None:
    _one(registry, "verdicts_expected", "Verdicts that the run owed", report.expected)
    _one(registry, "verdicts_lost", "Verdicts that never arrived", report.lost)
    counts = _labelled(registry, "verdicts", "Verdicts by outcome", "outcome")
    for outcome in Outcome:
        counts.labels(str(outcome)).set(report.counts.get(outcome, 0))
    causes = _labelled(
        registry, "findings", "Subjects in findings, by check and outcome", "check", "outcome"
    )
    subjects: Counter[tuple[str, str]] = Counter()
    for one in found:
        subjects[one.check, str(one.outcome)] += len(one.subjects)
    for labels, number in subjects.items():
        causes.labels(*labels).set(number)


def _fabric(registry: CollectorRegistry, report: Report) -> None:
    if report.coverage is not None:
        _one(registry, "pairs", "Pairs of the fleet", report.coverage.pairs)
        _one(registry, "pairs_measured", "Pairs that this run measured", report.coverage.pairs_run)
    speeds: dict[tuple[int, int], list[float]] = {}
    for pair in report.pairs:
        for size in pair.sizes:
            if size.busbw_gbs is not None:
                speeds.setdefault((pair.rail, size.size_bytes), []).append(size.busbw_gbs)
    if not speeds:
        return
    largest = max(size for _, size in speeds)
    busbw = _labelled(
        registry, "pair_busbw_gbs", "Bus bandwidth of pairs at the largest size, GB/s",
        "rail", "quantile",
    )  # fmt: skip
    for (rail, size_bytes), own in speeds.items():
        if size_bytes == largest:
            for share in _QUANTILES:
                busbw.labels(str(rail), f"{share:g}").set(nearest_rank(own, share))


def _one(registry: CollectorRegistry, name: str, words: str, value: float) -> None:
    _labelled(registry, name, words).set(value)


def _labelled(registry: CollectorRegistry, name: str, words: str, *labels: str) -> Gauge:
    from prometheus_client import Gauge

    return Gauge(f"preflight_{name}", words, labels, registry=registry)
