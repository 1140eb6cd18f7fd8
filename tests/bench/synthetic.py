"""A thousand nodes that were never there: what a run over them would have measured.

    python -m tests.bench.synthetic FOLDER NODES

writes `measured.json` and `fleet.toml`, in a process of its own so that the memory it takes is not
counted as anybody else's. A few nodes are bad, as in any fleet of that size: one in 200 lacks a
GPU, one in 250 is slow in the sweep.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.fabric.samples import End, InsideSamples, PairSamples, Sweep, Timing
from preflight.fabric.schedule import circle_rounds
from preflight.fabric.sweep_plan import GLOO
from preflight.facts.model import Attempt, MasterPort, Ports
from preflight.facts.node import Clock, Reach
from preflight.run.measured import Measured
from preflight.run.stages import DATA_PORTS
from tests.bench.synthetic_facts import ENVIRONMENT, GPUS, facts
from tests.lab import nvidia_smi
from tests.lab.nvml.scenario import h100

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight.fabric.samples import Rung
    from preflight.fabric.schedule import Rounds
    from preflight.facts.model import Facts

NONCE = "00" * 16
MASTER_PORT = 29500
REACHED = Reach("paramiko", seconds=0.4, clock=Clock(0.0, 0.02))
_INSIDE = 2
"""Rails that all-reduce inside of a node; more would only make the file larger."""
_LACKS_GPU_EVERY, _SLOW_EVERY = 200, 250
LATENCY_US, SPEED_GBS = 180.0, 1.2
"""A healthy gloo pair, as measured between hosts of the lab."""


def names(number: int) -> list[str]:
    """gpu0001, gpu0002, ... in fleet order."""
    return [f"gpu{place:04}" for place in range(1, number + 1)]


_LAUNCH = (
    "torchrun --nnodes={nodes} "
    f"--nproc-per-node={GPUS} --rdzv-backend=c10d --rdzv-endpoint=gpu0001:{MASTER_PORT} train.py"
)


def inventory(number: int) -> str:
    """The fleet as an operator would write it down, with everything promised."""
    return f"""
[job]
master_port = {MASTER_PORT}
launch = "{ENVIRONMENT} {_LAUNCH.format(nodes=number)}"

[group.train]
nodes = "gpu[0001-{number:04}]"
gpus = {GPUS}
gpu_model = "H100"
nvlinks_per_gpu = 18
nics = 8
"""


def told(number: int) -> Iterator[tuple[str, Facts]]:
    """What each node's probe would answer."""
    nodes, drawing = names(number), nvidia_smi.topo_text(h100("gpu"))
    for place, name in enumerate(nodes):
        lacking = int(place % _LACKS_GPU_EVERY == _LACKS_GPU_EVERY - 1)
        yield (
            name,
            facts(place, name, nonce=NONCE, master=nodes[0], drawing=drawing, lacking=lacking),
        )


def measured(number: int) -> Measured:
    """Everything the default run of that fleet would have brought home over gloo."""
    nodes = names(number)
    rounds = circle_rounds(nodes)
    return Measured(
        nonce=NONCE,
        reach=dict.fromkeys(nodes, REACHED),
        facts=dict(told(number)),
        ports=_ports(nodes, rounds),
        sweep=_sweep(nodes, rounds),
    )


def _ports(nodes: Sequence[str], rounds: Rounds) -> dict[str, Ports]:
    """Everybody reached the master, and the data ports of everybody it is paired with."""
    partners: dict[str, list[str]] = {name: [] for name in nodes}
    for one, other in (pair for around in rounds for pair in around):
        partners[one].append(other)
        partners[other].append(one)
    listening = tuple(range(40001, 40001 + DATA_PORTS))
    master = nodes[0]
    reports = {}
    for name in nodes:
        attempts = [
            Attempt(other, port, "data", "ok", ms=0.4)
            for other in partners[name]
            for port in listening
        ]
        if name != master:
            attempts.append(Attempt(master, MASTER_PORT, "master", "ok", ms=0.4))
        own = MasterPort(MASTER_PORT, bound=True, free_again=True) if name == master else None
        reports[name] = Ports(1, NONCE, name, 0.2, own, tuple(attempts))
    return reports


def _sweep(nodes: Sequence[str], rounds: Rounds) -> Sweep:
    dice = random.Random(1)  # noqa: S311  made-up samples, the same in every run
    slow = set(nodes[_SLOW_EVERY - 1 :: _SLOW_EVERY])
    pairs = [
        PairSamples(
            *pair,
            rail=0,
            round=number,
            backend="gloo",
            first=_end(pair[0], dice, slow=not slow.isdisjoint(pair)),
            second=_end(pair[1], dice, slow=not slow.isdisjoint(pair)),
        )
        for number, around in enumerate(rounds)
        for pair in around
    ]
    inside = tuple(
        InsideSamples(name, "gloo", tuple(_end(name, dice, slow=False) for _ in range(_INSIDE)))
        for name in nodes
    )
    return Sweep(ladder=GLOO, rounds=rounds, pairs=tuple(pairs), seconds=20.0, inside=inside)


def _end(name: str, dice: random.Random, *, slow: bool) -> End:
    timings = tuple(_timing(rung, dice, slow=slow) for rung in GLOO)
    return End(name, "measured", timings, setup_ms=4.0)


def _timing(rung: Rung, dice: random.Random, *, slow: bool) -> Timing:
    """Every iteration of one size, to a tenth of a microsecond as the payload rounds them."""
    typical_us = LATENCY_US + rung.size_bytes / SPEED_GBS / 1e3 * (20 if slow else 1)
    times = tuple(
        round(typical_us * dice.lognormvariate(0, 0.2), 1) for _ in range(rung.iterations)
    )
    gaps = tuple(round(dice.uniform(1, 9), 1) for _ in range(rung.iterations))
    return Timing(rung.size_bytes, times, gaps)


def main() -> None:
    """Write the two files."""
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    (folder / "fleet.toml").write_text(inventory(number))
    (folder / "measured.json").write_bytes(measured(number).encode())


if __name__ == "__main__":
    main()
