"""What Prometheus and JUnit are told: stable names, and numbers that say when to worry."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from preflight.errors import UsageError
from preflight.report.exports import junit, metrics, refuse_unread
from preflight.report.outputs import Outputs
from preflight.report.since import report_findings
from preflight.verdict import Outcome, Verdict, not_run, unknown
from tests.unit.report.nights import BENT, pair, report

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.report.document import Report

NODES = ("n1", "n2", "n3")


def told(one: Report) -> dict[tuple[str, ...], float]:
    """(name, label values...) → value, as Prometheus reads the file."""
    families = text_string_to_metric_families(metrics(one, report_findings(one)).decode())
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_run_in_numbers() -> None:
    """Nodes by state, verdicts by outcome, findings by check, pairs as quantiles."""
    speeds = [pair("n1", "n2", 40.0), pair("n1", "n3", 44.0), pair("n2", "n3", 48.0)]
    seen = told(report(NODES, {("gpu.count", "n2"): BENT}, pairs=speeds))
    assert seen["preflight_nodes", "ready"] == 2
    assert seen["preflight_node_ready", "n1"] == 1
    assert seen["preflight_node_ready", "n2"] == 0
    assert seen["preflight_verdicts", "fail"] == 1
    assert seen["preflight_findings", "gpu.count", "fail"] == 1
    assert seen["preflight_pair_busbw_gbs", "0.5", "0"] == 44.0
    assert seen["preflight_last_run_timestamp_seconds",] == 1795312800 + 41
    assert seen["preflight_run_complete",] == 1


def test_a_run_that_lost_verdicts_or_was_stopped_is_not_complete() -> None:
    """The file's age says that somebody wrote it, not that all was judged."""
    one = report(NODES)
    assert told(one)["preflight_run_complete",] == 1
    assert told(replace(one, missing=1))["preflight_run_complete",] == 0
    assert told(replace(one, interrupted=True, exit=2))["preflight_run_complete",] == 0


def test_everybody_may_read_the_file_and_no_link_is_replaced(tmp_path: Path) -> None:
    """node_exporter runs as nobody in particular; a link there is somebody's."""
    path = tmp_path / "preflight.prom"
    outputs = Outputs(tmp_path / "run", metrics=path)
    outputs.write_metrics(report(NODES), ())
    assert outputs.metrics_trouble == ""
    assert path.stat().st_mode & 0o777 == 0o644
    assert [one.name for one in tmp_path.iterdir()] == ["preflight.prom"]
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    outputs.write_metrics(report(NODES), ())
    assert "symbolic link" in outputs.metrics_trouble


def test_a_name_that_node_exporter_does_not_read_is_refused(tmp_path: Path) -> None:
    """Before a run, with what to type."""
    with pytest.raises(UsageError, match=r"\*\.prom only"):
        refuse_unread(tmp_path / "preflight.txt")
    with pytest.raises(UsageError, match="make it"):
        refuse_unread(tmp_path / "none" / "preflight.prom")


def test_junit_names_say_check_and_subject_and_nothing_of_this_machine() -> None:
    """Failure, error, skipped and passed; what is not fine says what to do."""
    said = {
        ("gpu.count", "n1"): BENT,
        ("gpu.count", "n2"): not_run("no GPUs here"),
        ("gpu.ecc", "n1"): Verdict(outcome=Outcome.MISSING, sentence="it never \x1b[31marrived"),
        ("gpu.ecc", "n2"): unknown("may not look", advice="allow it", grant="sudo"),
    }
    root = ET.fromstring(junit(report(("n1", "n2"), said)))  # noqa: S314  our own
    (suite,) = root
    counted = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counted == {"tests": "4", "failures": "1", "errors": "1", "skipped": "1"}
    cases = {(c.get("classname"), c.get("name")): c for c in suite}
    failed = cases["preflight.gpu.count", "gpu.count[n1]"].find("failure")
    assert failed is not None
    assert failed.text is not None
    assert "do: look for Xid 79" in failed.text
    assert cases["preflight.gpu.ecc", "gpu.ecc[n2]"].find("failure") is None
