"""The morning's first look: what is new, what has recovered, since which night."""

from __future__ import annotations

from preflight.commands.nightly.conclude import change_lines
from preflight.report.since import report_findings, summary_of
from preflight.verdict import fail
from tests.unit.commands.reports import on, report

BENT = fail("7 of 8 GPUs", advice="drain")
SLOW = fail("slow", advice="look", blame="pair h1-h2")


def test_new_and_recovered_are_named() -> None:
    """Folded by check; pairs as they are; what was not checked again is counted apart."""
    bad = [on("gpu.count", name, verdict=BENT) for name in ("h1", "h2")]
    bad.append(on("gpu.ecc", "h9", verdict=BENT))
    then = report(["h1", "h2", "h3", "h9"], bad)
    fine = [on("gpu.count", "h1"), on("gpu.count", "h2", verdict=BENT)]
    more = [on("gpu.count", "h3", verdict=BENT), on("fabric.allreduce", "h1", "h2", verdict=SLOW)]
    now = report(["h1", "h2", "h3"], [*fine, *more])
    before = [summary_of(then, report_findings(then))]
    assert change_lines(now, report_findings(now), before) == [
        ("since", "2026-11-22 01:00 UTC: 2 new, 1 still, 1 recovered, 1 not judged again"),
        ("new", "fabric.allreduce pair h1-h2; gpu.count h3"),
        ("recovered", "gpu.count h1"),
    ]


def test_a_first_night_says_nothing_of_others() -> None:
    """Where no earlier sweep is known there is nothing to compare with."""
    assert change_lines(report(["h1"]), (), []) == []
