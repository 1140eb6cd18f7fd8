"""Judges stored measurements without pytest, and says what the parts took.

python -m tests.bench.offline MEASURED INVENTORY
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from preflight.core.registry import Registry, load_folder, shipped_folder
from preflight.fleet.sources import FleetRequest, resolve
from preflight.run.expected_verdicts import Settings
from preflight.run.measured import Measured
from preflight.run.run import Run


def main() -> None:
    """Decode, judge every expected verdict, count."""
    began = time.perf_counter()
    measured = Measured.decode(Path(sys.argv[1]).read_bytes())
    decoded = time.perf_counter()
    fleet = resolve(FleetRequest(inventory=sys.argv[2]))
    run = Run(fleet, Registry(load_folder(shipped_folder())), Settings())
    ready = time.perf_counter()
    expected = run.expected()
    run.replay(measured, expected, lambda *_: None)
    judged = time.perf_counter()
    known = run.judgement.verdicts()
    if missing := [key for key in expected if key not in known]:
        raise RuntimeError(f"{len(missing)} verdicts were not reached, such as {missing[0]}")
    outcomes = [str(verdict.outcome) for verdict in known.values()]
    told = {
        "verdicts": len(expected),
        "outcomes": {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))},
        "decode_s": decoded - began,
        "judge_s": judged - ready,
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
