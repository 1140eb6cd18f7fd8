"""How this site hooks into preflight: whom to judge, what else to ask, whom to tell."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.run.site_sections import Section

if TYPE_CHECKING:
    import pytest

    from preflight.fleet.model import Host
    from preflight.report.document import Report

HERE = Path(__file__).parent


def pytest_preflight_nodes() -> list[Host]:
    """Read the site's own list of machines; here each is a process on this one."""
    from preflight.fleet.model import Host

    with (HERE / "nodes.csv").open(encoding="utf-8", newline="") as file:
        return [
            Host(
                name=row["name"],
                address="127.0.0.1",
                group="train",
                transport="local",
                python=("env", f"SITE_IMAGE={row['image']}", sys.executable),
            )
            for row in csv.DictReader(file)
        ]


def pytest_preflight_probe_sections() -> list[Section]:
    """Ask every node two things that preflight does not ask by itself."""
    return [
        Section("site.image", HERE / "sections" / "image.py"),
        Section("site.scratch", HERE / "sections" / "scratch.py", deadline_s=3),
    ]


def pytest_preflight_report(report: Report, config: pytest.Config) -> None:
    """Leave a file for Prometheus's node_exporter, whole or not at all."""
    lines = ["# TYPE preflight_node_ready gauge"]
    for name in report.fleet.nodes:
        ready = int(name in report.fleet.ready)
        lines.append(f'preflight_node_ready{{node="{name}"}} {ready}')
    lines += ["# TYPE preflight_exit gauge", f"preflight_exit {report.exit}", ""]
    target = config.rootpath / "preflight.prom"
    beside = target.with_suffix(".tmp")
    beside.write_text("\n".join(lines), encoding="ascii")
    beside.replace(target)
