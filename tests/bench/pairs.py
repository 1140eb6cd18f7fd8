"""What measuring every pair costs: one launch over the fleet against one torchrun per pair."""

from __future__ import annotations

import itertools
import secrets
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.fabric.plan import GLOO, GLOO_SOAK, Budget
from preflight.fabric.schedule import circle_rounds
from preflight.stages.sweep import sweep_fleet
from tests.bench.logins import ssh, together
from tests.bench.probing import DEADLINE_S, connected, some
from tests.bench.ratio import Bound, Row, extremes, faster, in_turns, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.fleet.model import Host
    from preflight.transport.protocol import Connection
    from tests.lab.cluster import Lab

_BOUND = Bound("at least", 4)
_HOSTS, _RUNS = 4, 3
_JOB = Path(__file__).with_name("pair_job.py")
_PORTS = itertools.count(29600)
"""A master port per launch, so that none waits for the connections of the one before."""


def measure(lab: Lab) -> Iterator[Row]:
    """All pairs of four hosts, the same ladder of gloo all-reduces on both sides."""
    hosts = some(lab.inventory(), _HOSTS)
    _, connections = connected(hosts)
    try:
        ours, theirs = in_turns(
            _RUNS,
            seconds(lambda: _sweep(hosts, connections)),
            seconds(lambda: _launch_per_pair(hosts)),
        )
    finally:
        for connection in connections.values():
            connection.close()
    yield Row(
        id="pairs.torchrun",
        what=f"all pairs of {_HOSTS} hosts: one torchrun per pair / our one launch",
        ours=extremes(ours),
        theirs=extremes(theirs),
        unit="s",
        value=faster(ours, theirs),
        value_unit="times faster",
        runs=_RUNS,
        bound=_BOUND,
    )


def _sweep(hosts: Sequence[Host], connections: Mapping[str, Connection]) -> None:
    rounds = circle_rounds([host.name for host in hosts])
    swept = sweep_fleet(
        hosts,
        connections,
        rounds,
        left_out={},
        nonce=secrets.token_hex(16),
        deadline_s=DEADLINE_S,
        interface=None,
        progress=lambda *_: None,
    )
    ends = [end for pair in swept.pairs for end in (pair.first, pair.second)]
    if not ends or any(end is None or end.state != "measured" for end in ends):
        raise RuntimeError(f"the sweep did not measure every pair: {swept.troubles}")


def _launch_per_pair(hosts: Sequence[Host]) -> None:
    """One pair after the other: two at once would measure each other on shared links."""
    named = {host.name: host for host in hosts}
    for one, other in itertools.chain.from_iterable(circle_rounds(list(named))):
        port = next(_PORTS)
        commands = [
            ssh(host, shlex.join(_torchrun(host, rank, named[one].address, port)))
            for rank, host in enumerate((named[one], named[other]))
        ]
        if not together(commands)[0].startswith("{"):
            raise RuntimeError(f"torchrun on {one} and {other} measured nothing")


def _torchrun(host: Host, rank: int, master: str, port: int) -> list[str]:
    ladder = [f"{rung.size_bytes}:{rung.warmup}:{rung.iterations}" for rung in GLOO]
    soak = f"{GLOO_SOAK.size_bytes}:{GLOO_SOAK.warmup}:{GLOO_SOAK.iterations}:{Budget().soak_s}"
    return [
        *("env", "GLOO_SOCKET_IFNAME=eth0", "OMP_NUM_THREADS=1"),
        *(*host.python, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
        *(f"--node-rank={rank}", f"--master-addr={master}", f"--master-port={port}"),
        *(str(_JOB), *ladder, soak),
    ]
