"""Sweeps of lab hosts with a plan of the benchmark's own, by the real controller and payload."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from preflight.fabric.launch import sweep
from preflight.transport.bundle import start_payload
from tests.bench.probing import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.core.remote_command import Connection
    from preflight.fabric.samples import Sweep
    from preflight.fabric.sweep_plan import SweepPlan
    from preflight.fleet.model import Host
    from preflight.transport.payload_session import MessageSession


def swept(plan: SweepPlan, hosts: Sequence[Host], connections: Mapping[str, Connection]) -> Sweep:
    """Do what the plan says; the connections stay open."""

    def start(host: Host, request: Mapping[str, object]) -> MessageSession:
        return start_payload(connections[host.name], host, "sweep", request, DEADLINE_S)

    return sweep(plan, hosts, start, nonce=secrets.token_hex(16), deadline_s=DEADLINE_S)


def whole(measured: Sweep) -> Sweep:
    """The same sweep, if it measured every pair from both ends; RuntimeError if not."""
    ends = [end for pair in measured.pairs for end in (pair.first, pair.second)]
    if not ends or any(end is None or end.state != "measured" for end in ends):
        raise RuntimeError(f"the sweep did not measure every pair: {measured.troubles}")
    return measured
