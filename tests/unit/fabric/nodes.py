"""Nodes for real sweeps on this machine: the payload's zip in processes of ours, on loopback."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preflight.fabric.samples import Rung
from preflight.fabric.schedule import circle_rounds
from preflight.fabric.sweep_plan import Budget, SweepPlan
from preflight.fleet.model import Host
from preflight.transport.bundle import start_payload
from preflight.transport.ways import transport_for

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping

    from preflight.fabric.samples import Sweep
    from preflight.transport.payload_session import MessageSession

HAS_TORCH = importlib.util.find_spec("torch") is not None
DEADLINE_S = 90.0
IN_A_PAIR = 2
"""A measuring process with more sockets than these is connected to its partner."""
_ONE = 1
NAMES = ("h1", "h2", "h3", "h4")

QUICK = (Rung(8, 5, 50), Rung(64 << 10, 1, 5), Rung(1 << 20, 1, 5))
SOAK = Rung(64 << 10, 1, 20)
LONG = (Rung(8, 5, 100_000),)
"""Stays in one size until its time box ends, so that a test can strike while it measures."""


def fleet(count: int) -> list[Host]:
    """The first few nodes, all of them this machine."""
    return [
        Host(name=name, address="127.0.0.1", transport="local", python=(sys.executable,))
        for name in NAMES[:count]
    ]


def plan(hosts: list[Host], *, long_s: float = 0.0, **changes: Any) -> SweepPlan:
    """All pairs with short deadlines; `long_s` makes each pair take about that long."""
    names = tuple(host.name for host in hosts)
    budget = Budget(meet_s=3.0, op_s=2.0, box_s=long_s or 0.2, pair_s=long_s + 2.0)
    values: dict[str, Any] = {
        "nodes": names,
        "rounds": circle_rounds(names),
        "gloo": LONG if long_s else QUICK,
        "gloo_soak": None if long_s else SOAK,
        "gloo_budget": budget,
        "start_s": 12.0,
    }
    return SweepPlan(**{**values, **changes})


class Starter:
    """Starts agents as a run does; remembers their pids, and lets some nodes be odd."""

    def __init__(
        self, odd: Mapping[str, Callable[[Host, Mapping[str, object]], MessageSession]]
    ) -> None:
        self._odd = odd
        self.talks: dict[str, MessageSession] = {}

    def __call__(self, host: Host, request: Mapping[str, object]) -> MessageSession:
        """What `sweep` is given to start an agent with."""
        start = self._odd.get(host.name, real)
        self.talks[host.name] = start(host, request)
        return self.talks[host.name]


def real(host: Host, request: Mapping[str, object]) -> MessageSession:
    """The payload itself, in a process of this machine."""
    connection = transport_for("local").connect(host, 5.0)
    return start_payload(connection, host, "sweep", request, DEADLINE_S + 5)


def states(sweep: Sweep) -> dict[str, tuple[str | None, str | None]]:
    """What the two ends of each pair reported."""
    return {
        f"{pair.a}-{pair.b}": (
            pair.first.state if pair.first else None,
            pair.second.state if pair.second else None,
        )
        for pair in sweep.pairs
    }


def below(pid: int) -> list[int]:
    """All descendants of a process."""
    found: list[int] = []
    rising = [pid]
    while rising:
        rising = [child for parent in rising for child in _children(parent)]
        found += rising
    return found


def named(name: str, pids: list[int]) -> list[int]:
    """Those of the processes that call themselves so."""
    return [pid for pid in pids if _read(Path(f"/proc/{pid}/comm")).strip() == name]


def agent(talk: MessageSession | None) -> list[int]:
    """An agent's process (below timeout's), and all that it started, agent first."""
    return below(talk._remote.process.pid) if talk else []  # type: ignore[attr-defined]


def measuring(talk: MessageSession | None, beyond: int = _ONE) -> list[int]:
    """The measuring process of a node, while it has sockets to the store and to a partner.

    `beyond`: it has more sockets than so many; past `IN_A_PAIR` it is connected for sure.
    """
    return [
        pid
        for pid in named("preflight-pair", agent(talk))
        if sum(link.startswith("socket:") for link in _descriptors(pid)) > beyond
    ]


def wait_for(find: Callable[[], list[int]], patience_s: float = 30.0) -> list[int]:
    """Poll until something is found; nothing found in time is the caller's failure."""
    ends = time.monotonic() + patience_s
    while time.monotonic() < ends:
        if found := find():
            return found
        time.sleep(0.02)
    return []


def strike(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to processes of ours, by pid."""
    for pid in pids:
        os.kill(pid, number)


def strike_all(pids: list[int], number: signal.Signals) -> None:
    """The same to those that are still there: one that is gone must not leave another stopped."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").glob("*/children")
        for child in _read(task).split()
    ]


def _descriptors(pid: int) -> list[str]:
    try:
        return [str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
