"""Records what healthy hosts of the lab measure, as the noise of simulated fabrics.

python -m tests.bench.record [--runs 3] [--output tests/data/healthy-sweeps.json]
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from preflight.fabric.samples import Rung
from preflight.fabric.schedule import circle_rounds
from preflight.fabric.sweep_plan import KIB, MIB, SweepPlan
from tests.bench.machine import machine
from tests.bench.probing import connected, some
from tests.bench.sweeping import swept
from tests.lab.cluster import Lab
from tests.simulate.recorded import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.core.remote_command import Connection
    from preflight.fabric.samples import Sweep
    from preflight.fleet.model import Host

FILE = Path(__file__).parents[1] / "data" / "healthy-sweeps.json"
_HOSTS = 8
_LADDER = (
    Rung(8, 20, 200),
    Rung(64 * KIB, 3, 50),
    Rung(256 * KIB, 2, 60),
    Rung(1 * MIB, 2, 25),
    Rung(4 * MIB, 2, 15),
)


def main() -> int:
    """Bring hosts up, sweep all their pairs some times, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.record", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--output", type=Path, default=FILE)
    options = parser.parse_args()
    with Lab(hosts=_HOSTS) as lab:
        hosts = some(lab.inventory(), _HOSTS)
        _, connections = connected(hosts)
        try:
            sweeps = [_sweep(hosts, connections) for _ in range(options.runs)]
        finally:
            for connection in connections.values():
                connection.close()
    here = machine()
    what = (
        f"{options.runs} healthy sweeps of all {_HOSTS * (_HOSTS - 1) // 2} pairs of {_HOSTS} "
        f"hosts of the lab (network namespaces on one machine: {here.cores} cores, {here.cpu}), "
        f"gloo over TCP, {datetime.now(UTC):%Y-%m-%d}"
    )
    recording = record(sweeps, what)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_bytes(msgspec.json.encode(recording) + b"\n")
    sys.stdout.write(f"{what}\nwritten to {options.output}\n")
    return 0


def _sweep(hosts: Sequence[Host], connections: Mapping[str, Connection]) -> Sweep:
    names = tuple(host.name for host in hosts)
    plan = SweepPlan(nodes=names, rounds=circle_rounds(names), gloo=_LADDER, gloo_soak=None)
    budget = msgspec.structs.replace(plan.gloo_budget, box_s=2.0)
    return swept(msgspec.structs.replace(plan, gloo_budget=budget), hosts, connections)


if __name__ == "__main__":
    sys.exit(main())
