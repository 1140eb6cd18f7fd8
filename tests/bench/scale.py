"""`make bench-scale`: what reading a fleet costs the controller, from 1 node to 512.

Every node is an sshd of its own on loopback, so that all nodes' work falls on this machine too:
wall time grows with it as it would not on a fleet, but the controller's own processor time and
memory are what they are anywhere. They are measured in a fresh process per size. For the same
reason a node has all the time of the run for its answer here, not its usual 25 s.

    python -m tests.bench.scale [--most 512] [--output bench-results/scale.json]
    python -m tests.bench.scale --one INVENTORY NUMBER      one size, as JSON
"""

from __future__ import annotations

import argparse
import os
import resource
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from preflight.run import probe_stage
from preflight.transport.ways import Ways
from tests.bench.farm import Farm
from tests.bench.machine import Machine, machine
from tests.bench.probing import AT_MOST, some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fleet.model import Host

_DEADLINE_S = 600.0
_FUTURE = 4096


class Point(Struct, frozen=True, kw_only=True):
    """One size of fleet, in a process that has done its imports and read one node before."""

    nodes: int
    wall_s: float
    controller_s: float
    """Processor time of the controller itself, all its threads."""
    helpers_s: float
    """Processor time of processes that it started and waited for (`ssh -G`)."""
    machine_s: float
    """Processor time of the whole machine meanwhile: the nodes' own work is in it."""
    held_mib: float
    """Resident memory that came with the answers and the connections, all still held."""
    threads: int
    """Alive while all connections are held."""

    @property
    def controller_ms(self) -> float:
        """Of the controller's processor time, per node."""
        return (self.controller_s + self.helpers_s) * 1000 / self.nodes

    @property
    def held_kib(self) -> float:
        """Of memory, per node."""
        return self.held_mib * 1024 / self.nodes


class Curve(Struct, frozen=True):
    """`bench-results/scale.json`."""

    machine: Machine
    transport: str
    at_most: int
    points: tuple[Point, ...]


def main() -> int:
    """Measure the curve, show it with what it says of a larger fleet, write it."""
    options = _options()
    if options.one:
        inventory, number = options.one
        sys.stdout.buffer.write(msgspec.json.encode(_measure(some(Path(inventory), int(number)))))
        return 0
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if size <= options.most]
    points: list[Point] = []
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for size in sizes:
        with Farm(size) as farm:
            points.append(_in_fresh_process(farm.inventory, size))
        curve = Curve(machine(), "paramiko", AT_MOST, tuple(points))
        text = msgspec.json.format(msgspec.json.encode(curve), indent=2)
        options.output.write_bytes(text + b"\n")
    sys.stdout.write("\n".join([*table(points), f"written to {options.output}"]) + "\n")
    return 0


def table(points: Sequence[Point]) -> list[str]:
    """One line per size, and the figures of the largest carried on to a fleet of 4,096."""
    lines = ["nodes   wall s   controller ms/node   machine ms/node   memory KiB/node   threads"]
    lines += [
        f"{p.nodes:5}  {p.wall_s:7.2f}  {p.controller_ms:19.1f}  "
        f"{p.machine_s * 1000 / p.nodes:16.0f}  {p.held_kib:16.0f}  {p.threads:8}"
        for p in points
    ]
    last = points[-1]
    return [
        *lines,
        (
            f"{_FUTURE} nodes at the figures of {last.nodes}: "
            f"{last.controller_ms * _FUTURE / 1000:.0f} s of the controller's processor, "
            f"{last.held_kib * _FUTURE / 1024:.0f} MiB"
        ),
    ]


def _measure(hosts: Sequence[Host]) -> Point:
    probe_stage.PROBE_S = _DEADLINE_S  # one machine does the work of all nodes
    _leave(_reach(hosts[:1]))  # imports and the payload's bundle: once per run, whatever the fleet
    memory, cpu, helpers, everyone = _resident_mib(), _cpu_s(), _helpers_s(), _machine_s()
    began = time.perf_counter()
    held = _reach(hosts)
    wall_s = time.perf_counter() - began
    point = Point(
        nodes=len(hosts),
        wall_s=wall_s,
        controller_s=_cpu_s() - cpu,
        helpers_s=_helpers_s() - helpers,
        machine_s=_machine_s() - everyone,
        held_mib=max(0.0, _resident_mib() - memory),
        threads=threading.active_count(),
    )
    _leave(held)
    return point


def _reach(hosts: Sequence[Host]) -> list[object]:
    """Log in and read everyone's facts; RuntimeError if a node gives none."""
    reached = probe_stage.probe_fleet(
        hosts,
        Ways(hosts),
        secrets.token_hex(16),
        deadline_s=_DEADLINE_S,
        at_most=AT_MOST,
        progress=lambda *_: None,
    )
    for name, one in reached.items():
        if one.facts is None:
            raise RuntimeError(f"{name} gave no facts: {one.reach.sentence}")
    return list(reached.values())


def _leave(reached: Sequence[object]) -> None:
    for one in reached:
        connection = getattr(one, "connection", None)
        if connection is not None:
            connection.close()


def _in_fresh_process(inventory: Path, number: int) -> Point:
    sys.stderr.write(f"{number} nodes (load {os.getloadavg()[0]:.2f})\n")
    words = [sys.executable, "-m", "tests.bench.scale", "--one", str(inventory), str(number)]
    done = subprocess.run(words, check=True, capture_output=True, timeout=2 * _DEADLINE_S)
    return msgspec.json.decode(done.stdout, type=Point)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _helpers_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _machine_s() -> float:
    """Of /proc/stat: everything but idle and waiting, in seconds."""
    user, nice, system, _idle, _wait, *rest = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + sum(rest[:3])) / os.sysconf("SC_CLK_TCK")


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    parser.add_argument("--most", type=int, default=512, help="nodes of the largest fleet")
    parser.add_argument("--output", type=Path, default=Path("bench-results/scale.json"))
    parser.add_argument("--one", nargs=2, metavar=("INVENTORY", "NUMBER"), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
