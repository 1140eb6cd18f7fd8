"""What each way in costs: facts of 32 lab hosts by every transport beside 32 bare logins."""

from __future__ import annotations

import os
import resource
import secrets
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from preflight.run.probe_stage import probe_fleet
from preflight.transport.slurm_allocation import Launcher
from preflight.transport.srun import SrunTransport
from preflight.transport.ways import Ways
from tests.bench.logins import bare_logins
from tests.bench.probing import AT_MOST, DEADLINE_S, some
from tests.bench.ratio import Row, extremes, in_turns, times
from tests.lab.slurm import Slurm
from tests.lab.slurm import why_not as no_slurm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from preflight.fleet.model import Host
    from preflight.transport.ways import Transport
    from tests.lab.cluster import Lab

HOSTS = 32
_RUNS = 5


class Cost(Struct, frozen=True):
    """One turn: wall time, and processor time of this process and of those it waited for."""

    wall_s: float
    cpu_s: float


def measure(lab: Lab) -> Iterator[Row]:
    """Every transport that reaches lab hosts, in turns with the same bare logins."""
    hosts = some(lab.inventory(), HOSTS)
    bare = partial(bare_logins, hosts)
    for transport in ("paramiko", "openssh"):
        yield from compare(transport, partial(facts, _by(transport, hosts)), bare)
    if reason := no_slurm():
        sys.stderr.write(f"ways.srun is left out: {reason}\n")
        return
    with Slurm(lab) as slurm, slurm.allocation() as environ:
        ours = _by("srun", hosts)
        start = partial(SrunTransport, ours, Launcher(os.environ | environ))
        yield from compare("srun", partial(facts, ours, start), bare)


def _by(transport: str, hosts: Sequence[Host]) -> list[Host]:
    return [msgspec.structs.replace(host, transport=transport) for host in hosts]


def compare(
    name: str, ours: Callable[[], object], theirs: Callable[[], object], runs: int = _RUNS
) -> Iterator[Row]:
    """Two rows of one way: wall time, and the controller's processor time per node."""
    ours()  # imports and the payload's bundle: once per run, whatever the fleet
    mine, others = in_turns(runs, _costs(ours), _costs(theirs))
    what = f"facts of {HOSTS} hosts by {name} / {HOSTS} times `ssh host true`"
    for suffix, unit, pick in (
        ("", "s", lambda cost: cost.wall_s),
        (".cpu", "ms per node", lambda cost: cost.cpu_s * 1000 / HOSTS),
    ):
        left, right = list(map(pick, mine)), list(map(pick, others))
        yield Row(
            id=f"ways.{name}{suffix}",
            what=what if not suffix else f"{what}: processor time here",
            ours=extremes(left),
            theirs=extremes(right),
            unit=unit,
            value=times(left, right),
            runs=runs,
        )


def facts(hosts: Sequence[Host], start: Callable[[], Transport] | None = None) -> None:
    """Reach them, read the facts, and leave; RuntimeError if one gives none."""
    ways = Ways(hosts)
    if start is not None:
        ways.use(start())
    reached = probe_fleet(
        hosts,
        ways,
        secrets.token_hex(16),
        deadline_s=DEADLINE_S,
        at_most=AT_MOST,
        progress=lambda *_: None,
    )
    for name, one in reached.items():
        if one.connection is not None:
            one.connection.close()
        if one.facts is None:
            raise RuntimeError(f"{name} gave no facts: {one.reach.sentence}")
    ways.close()


def _costs(work: Callable[[], object]) -> Callable[[], Cost]:
    def timed() -> Cost:
        began, before = time.perf_counter(), _cpu_s()
        work()
        return Cost(time.perf_counter() - began, _cpu_s() - before)

    return timed


def _cpu_s() -> float:
    mine = resource.getrusage(resource.RUSAGE_SELF)
    waited_for = resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + waited_for.ru_utime + waited_for.ru_stime
