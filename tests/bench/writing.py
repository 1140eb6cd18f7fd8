"""What writing the reports of a large fleet takes, when its last verdict is known."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.outside import cost
from tests.bench.ratio import Bound, Row, extremes

if TYPE_CHECKING:
    from collections.abc import Iterator

_NODES, _RUNS = 1000, 3
_SECONDS, _MEGABYTES = Bound("at most", 5), Bound("at most", 2)


def measure() -> Iterator[Row]:
    """A thousand synthetic nodes beside 29 earlier nights: time, and the bytes of the page."""
    with tempfile.TemporaryDirectory(prefix="preflight-bench-") as name:
        folder = Path(name)
        python = [sys.executable, "-m"]
        cost([*python, "tests.bench.synthetic", name, str(_NODES)], folder, exits=0)
        stored = [str(folder / "measured.json"), str(folder / "fleet.toml")]
        told: list[dict[str, float]] = []
        for turn in range(_RUNS):
            runs = folder / f"runs-{turn}"
            cost([*python, "tests.bench.written", *stored, str(runs)], folder, exits=0)
            told.append(json.loads((folder / "output.txt").read_text()))
    yield Row(
        id="report.time",
        what=f"all files of a run over {_NODES} nodes: report.json, report.html, every event",
        unit="s",
        value=extremes([one["seconds"] for one in told]),
        value_unit="s",
        runs=_RUNS,
        bound=_SECONDS,
        note=f"processor time: {min(one['cpu_s'] for one in told):.1f} s",
    )
    yield Row(
        id="report.page",
        what="its report.html, with 30 nights of trends",
        unit="MB",
        value=extremes([one["page_mb"] for one in told]),
        value_unit="MB",
        runs=_RUNS,
        bound=_MEGABYTES,
    )
