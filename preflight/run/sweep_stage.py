"""Stage `fabric`: one launch over the fleet measures every pair of every round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.core.remote_command import OUTPUT_LIMIT
from preflight.fabric.agents import start_seats
from preflight.fabric.launch import sweep
from preflight.fabric.plan import SweepPlan, catching
from preflight.transport.bundle import start_payload
from preflight.transport.protocol import Manned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from preflight.fabric.samples import Sweep
    from preflight.fabric.schedule import Rounds
    from preflight.facts.model import Facts
    from preflight.fleet.model import Host, Job
    from preflight.transport.payload_session import LeasedTalk
    from preflight.transport.protocol import Connection


READY_S, READY_SHARE, READY_MOST_S = 45.0, 3, 300.0
"""For the nodes' Pythons to import torch: that part of the time given, within these bounds."""


def may_have_rails(connection: Connection, facts: Facts | None) -> bool:
    """Whether a node can have two rails or more: ranks of the job, or GPUs that answered."""
    gpus = facts.gpus if facts is not None else None
    seats = len(connection.seats) if isinstance(connection, Manned) else 0
    return max(seats, len(gpus or ())) > 1


def sweep_fleet(
    hosts: Sequence[Host],
    connections: Mapping[str, Connection],
    rounds: Rounds,
    *,
    left_out: Mapping[str, str],
    nonce: str,
    deadline_s: float,
    interface: str | None,
    job: Job,
    catch_rate: float | None = None,
    leaves: Mapping[str, str] | None = None,
    seed: int = 1,
    gathering: Callable[[int, int, list[str]], None] = lambda *_: None,
    progress: Callable[[int, int, list[str]], None],
    interrupted: Callable[[Sweep], None] = lambda _so_far: None,
    suspects: Callable[[Sweep], Rounds] | None = None,
    inside: bool = True,
    domains: Mapping[str, str] | None = None,
    stop_early: bool = False,
    cut: frozenset[tuple[str, str]] = frozenset(),
    unpinned: frozenset[str] = frozenset(),
    keep_logs: bool = False,
) -> Sweep:
    """Measure `rounds` among `hosts`; pairs of `left_out` nodes come back as not run, with why.

    `catch_rate`: events per second of load that the soak is to catch with 99 %; None for a short
    one. `suspects`: whom to measure again after the scheduled rounds (see `launch.sweep`).
    `job`: it is measured in the job's environment, where one is known.
    `inside`: nodes with two rails or more also all-reduce among their own. `domains`: node name →
    its NVLink domain, over which it is measured, too. `stop_early`: a pair that its samples condemn
    is not measured to the end. `cut`: (from, to) of connections known not to come about.
    `unpinned`: see `SweepPlan`. `keep_logs`: what NCCL logged is kept, too. `gathering` hears of
    nodes whose Python has imported torch, `progress` of pairs. On Ctrl-C `interrupted` gets what
    was measured until then.
    """
    names = dict.fromkeys([host.name for host in hosts])
    plan = SweepPlan(
        nodes=(*names, *left_out),
        rounds=rounds,
        left_out=dict(left_out),
        interface=interface,
        leaves=dict(leaves or {}),
        seed=seed,
        inside=inside,
        domains=dict(domains or {}),
        stop_early=stop_early,
        cut=cut,
        unpinned=unpinned,
        keep_logs=keep_logs,
        ready_s=min(READY_MOST_S, max(READY_S, deadline_s / READY_SHARE)),
    )
    if catch_rate is not None:
        plan = catching(plan, catch_rate)
    limit = OUTPUT_LIMIT + plan.most_words

    def start(host: Host, request: Mapping[str, object]) -> LeasedTalk:
        connection = connections[host.name]
        if isinstance(connection, Manned):
            return start_seats(connection, host, request, deadline_s, limit=limit)
        environ = job.measured_in(host.name)
        return start_payload(
            connection, host, "sweep", request, deadline_s, limit=limit, environ=environ
        )

    return sweep(
        plan,
        hosts,
        start,
        nonce=nonce,
        deadline_s=deadline_s,
        gathering=gathering,
        progress=progress,
        interrupted=interrupted,
        suspects=suspects,
    )
