"""One torchrun over two lab hosts, started over ssh on both: the plain way to measure a pair."""

from __future__ import annotations

import itertools
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.logins import ssh, together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.samples import Rung
    from preflight.fleet.model import Host

_JOB = Path(__file__).with_name("pair_job.py")
_PORTS = itertools.count(29600)
"""A master port per launch, so that none waits for the connections of the one before."""


def rung(ladder: Rung, soak_s: float | None = None) -> str:
    """One size as the script's argument."""
    words = [ladder.size_bytes, ladder.warmup, ladder.iterations]
    return ":".join(map(str, words if soak_s is None else [*words, soak_s]))


def torchrun(pair: tuple[Host, Host], job: Sequence[str]) -> dict[int, float]:
    """Run the script on both; the median time of each size, us; RuntimeError if there is none."""
    port = next(_PORTS)
    commands = [
        ssh(host, shlex.join(_command(host, rank, pair[0].address, port, job)))
        for rank, host in enumerate(pair)
    ]
    said = together(commands)[0]
    if not said.startswith("{"):
        raise RuntimeError(f"torchrun on {pair[0].name} and {pair[1].name} measured nothing")
    return {int(size): median_us for size, median_us in json.loads(said).items()}


def _command(host: Host, rank: int, master: str, port: int, job: Sequence[str]) -> list[str]:
    return [
        *("env", "GLOO_SOCKET_IFNAME=eth0", "OMP_NUM_THREADS=1"),
        *(*host.python, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
        *(f"--node-rank={rank}", f"--master-addr={master}", f"--master-port={port}"),
        *(str(_JOB), *job),
    ]
