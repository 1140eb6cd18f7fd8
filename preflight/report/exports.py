"""Exports the verdicts for other tools: JUnit XML, and Prometheus' textfile collector.

`classname` is "preflight." and the check's id, `name` the item's: "gpu.count[gpu041]". In a run
with --junitxml preflight gives pytest's items the same ones.

Names and labels are stable; docs/reference/report.md lists them. Pairs are exported as quantiles
only: a thousand nodes would be half a million series.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from preflight.core.statistics import grouped, nearest_rank
from preflight.core.text import printable
from preflight.errors import UsageError
from preflight.report.document import Report, VerdictRow, moment
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from prometheus_client import CollectorRegistry, Gauge

    from preflight.report.findings import Finding


_SKIPPED = (Outcome.NOT_RUN, Outcome.WAIVED)
_ERROR = (Outcome.BROKEN, Outcome.MISSING)


def class_of(check: str) -> str:
    """The `classname` under which tools group a check's results."""
    return f"preflight.{check}"


def junit(report: Report) -> bytes:
    """The XML; a verdict that makes its subject not ready is a failure, a missing one an error."""
    rows = report.verdicts
    failed = sum(row.makes_not_ready for row in rows)
    errors = sum(row.outcome in _ERROR for row in rows)
    skipped = sum(row.outcome in _SKIPPED for row in rows)
    suite = ET.Element(
        "testsuite",
        name="preflight",
        tests=str(len(rows)),
        failures=str(failed),
        errors=str(errors),
        skipped=str(skipped),
        time=f"{report.seconds:.3f}",
        timestamp=report.started,
    )
    for row in rows:
        _add_case(suite, row)
    root = ET.Element("testsuites", name="preflight")
    root.append(suite)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _add_case(suite: ET.Element, row: VerdictRow) -> None:
    name = printable(f"{row.check}[{row.subject}]")
    case = ET.SubElement(suite, "testcase", classname=class_of(row.check), name=name, time="0")
    sentence = printable(row.sentence)
    properties = ET.SubElement(case, "properties")
    ET.SubElement(properties, "property", name="preflight_outcome", value=str(row.outcome))
    ET.SubElement(properties, "property", name="preflight_sentence", value=sentence)
    kind = "failure" if row.makes_not_ready else "error" if row.outcome in _ERROR else ""
    if kind:
        problem = ET.SubElement(case, kind, message=sentence)
        advice = f"\ndo: {printable(row.advice)}" if row.advice else ""
        problem.text = f"{row.outcome}: {sentence}{advice}"
    elif row.outcome in _SKIPPED:
        ET.SubElement(case, "skipped", message=sentence)


MODE = 0o644
"""node_exporter may run as any user."""

_SUFFIX = ".prom"
_QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)


def refuse_unread(path: Path) -> None:
    """UsageError, before a run, for a file that node_exporter would not read."""
    if path.suffix != _SUFFIX:
        raise UsageError(
            f"--preflight-prometheus={path}: node_exporter reads *{_SUFFIX} only: name it so"
        )
    if not path.parent.is_dir():
        raise UsageError(f"--preflight-prometheus: there is no folder {path.parent}: make it")


def metrics(report: Report, findings: Sequence[Finding]) -> bytes:
    """The text of the file."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    _set_run(registry, report)
    _set_nodes(registry, report)
    _set_verdicts(registry, report, findings)
    _set_fabric(registry, report)
    return generate_latest(registry)


def _set_run(registry: CollectorRegistry, report: Report) -> None:
    started = moment(report.started).timestamp()
    ended = started + report.seconds
    _set(registry, "last_run_timestamp_seconds", "When the last run ended, Unix time", ended)
    _set(registry, "last_run_duration_seconds", "How long it ran", report.seconds)
    _set(registry, "last_run_exit_code", "Its exit code: 0 ready, 1 not ready", report.exit)
    complete = not report.interrupted and not report.missing and report.exit in (0, 1)
    _set(registry, "run_complete", "1: every expected verdict was reached", complete)


def _set_nodes(registry: CollectorRegistry, report: Report) -> None:
    fleet = report.fleet
    states = _gauge(registry, "nodes", "Nodes by state", "state")
    ready = _gauge(registry, "node_ready", "1: ready, 0: not ready; absent: not judged", "node")
    for state in ("ready", "not_ready", "unjudged"):
        names: Sequence[str] = getattr(fleet, state)
        states.labels(state).set(len(names))
        for name in names if state != "unjudged" else ():
            ready.labels(name).set(state == "ready")


def _set_verdicts(registry: CollectorRegistry, report: Report, findings: Sequence[Finding]) -> None:
    _set(registry, "verdicts_expected", "Verdicts expected of the run", report.expected)
    _set(registry, "verdicts_missing", "Verdicts that never arrived", report.missing)
    counts = _gauge(registry, "verdicts", "Verdicts by outcome", "outcome")
    for outcome in Outcome:
        counts.labels(str(outcome)).set(report.counts.get(outcome, 0))
    words = "Subjects in findings, by check and outcome"
    causes = _gauge(registry, "findings", words, "check", "outcome")
    subjects: Counter[tuple[str, str]] = Counter()
    for finding in findings:
        subjects[finding.check, str(finding.outcome)] += len(finding.subjects)
    for labels, number in subjects.items():
        causes.labels(*labels).set(number)


def _set_fabric(registry: CollectorRegistry, report: Report) -> None:
    if report.coverage is not None:
        _set(registry, "pairs", "Pairs of the fleet", report.coverage.pairs)
        _set(registry, "pairs_measured", "Pairs that this run measured", report.coverage.pairs_run)
    speeds = grouped(
        ((pair.rail, size.size_bytes), size.busbw_gbs)
        for pair in report.pairs
        for size in pair.sizes
        if size.busbw_gbs is not None
    )
    if not speeds:
        return
    largest = max(size for _, size in speeds)
    words = "Bus bandwidth of pairs at the largest size, GB/s"
    busbw = _gauge(registry, "pair_busbw_gbs", words, "rail", "quantile")
    for (rail, size_bytes), values in speeds.items():
        if size_bytes == largest:
            for share in _QUANTILES:
                busbw.labels(str(rail), f"{share:g}").set(nearest_rank(values, share))


def _set(registry: CollectorRegistry, name: str, words: str, value: float) -> None:
    _gauge(registry, name, words).set(value)


def _gauge(registry: CollectorRegistry, name: str, words: str, *labels: str) -> Gauge:
    from prometheus_client import Gauge

    return Gauge(f"preflight_{name}", words, labels, registry=registry)
