"""Writes all that a run leaves, of stored measurements, and says how long that took.

python -m tests.bench.written MEASURED INVENTORY FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace

from preflight.core.registry import Ledger, Registry, load_folder, shipped_folder
from preflight.fleet.sources import FleetRequest, resolve
from preflight.report.events import NAME, Began, Ended, by_check, read_events
from preflight.report.outputs import Outputs
from preflight.report.page import PAGE
from preflight.report.ready import Ending
from preflight.report.since import utc_time
from preflight.run.expected_verdicts import Settings
from preflight.run.measured import Measured
from preflight.run.run import Run
from preflight.session.verdict_collector import conclude

_NIGHTS = 30
_BEGAN_S = 1_790_000_000.0


def main() -> None:
    """Judge, then write the files of the first night; beside 29 copies, those of the last."""
    measured = Measured.decode(Path(sys.argv[1]).read_bytes())
    run = Run(
        resolve(FleetRequest(inventory=sys.argv[2])),
        Registry(load_folder(shipped_folder())),
        Settings(),
    )
    expected = run.expected()
    run.replay(measured, expected, lambda *_: None)
    folder = Path(sys.argv[3])
    first = folder / "20260101-020000"
    _write(run, first)
    events = (first / NAME).read_bytes().splitlines()
    (ended,) = read_events(events[-1])
    if not isinstance(ended, Ended):
        raise TypeError(f"the last event is {ended}")
    for night in range(1, _NIGHTS - 1):
        other = folder / f"202601{night + 1:02}-020000"
        other.mkdir()
        told = replace(ended.night, run=str(night), seconds=night * 60.0)
        (other / NAME).write_bytes(msgspec.json.encode(Ended(night=told)) + b"\n")
    last = folder / f"202601{_NIGHTS:02}-020000"
    took_s, cpu_s = _write(run, last)
    page = (last / PAGE).stat().st_size
    sys.stdout.write(json.dumps({"seconds": took_s, "cpu_s": cpu_s, "page_mb": page / 1e6}) + "\n")


def _write(run: Run, folder: Path) -> tuple[float, float]:
    """All that is left to do when the last verdict is known; wall and processor seconds."""
    keys = run.expected()
    nodes = [host.name for host in run.fleet.hosts]
    ledger = Ledger()
    ledger.expect(keys)
    for key, verdict in run.judgement.verdicts().items():
        ledger.record(*key, verdict)
    entries = ledger.settle()
    began, began_cpu = time.perf_counter(), time.process_time()
    outputs = Outputs(folder)
    outputs.events.begin(
        Began(
            preflight="0", run=run.nonce, started=utc_time(_BEGAN_S), tier="quick",
            nodes=tuple(nodes), origin=run.fleet.origin, expected=by_check(keys, nodes),
        )
    )  # fmt: skip
    conclude(run, entries, outputs, Ending(), began_s=_BEGAN_S)
    return time.perf_counter() - began, time.process_time() - began_cpu


if __name__ == "__main__":
    main()
