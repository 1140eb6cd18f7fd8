"""Nodes of a Slurm allocation, through Slurm's own launcher: one step, relays that call back.

A step per node would hurt slurmctld, and srun's own pipes give every node the same input. So one
srun starts a small relay on each node; the relays call back, and commands run over their
connections. srun ends a whole step when one node fails to start it: the step is then started
again without that node, before any command has run.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from preflight.transport.protocol import ReachError
from preflight.transport.relay.hub import Hub
from preflight.transport.relay.remote import RelayConnection
from preflight.transport.slurm import words
from preflight.transport.slurm.addresses import own_addresses
from preflight.transport.slurm.job import Launcher
from preflight.transport.slurm.step import LONGEST_S, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fleet.model import Host

PATIENCE_S = 12.0
"""How long a node may take to call back: longer than two addresses take to time out on it."""

PER_NODE_S = 0.005
"""What each node adds to that."""

BREAKING_S = 1.0
"""For srun to name more nodes, once it is about to end the step because of one."""

ATTEMPTS = 4
"""Steps that are started at most; each leaves out the nodes that failed the one before."""

START_S = 45.0
"""For all attempts together."""


class SrunTransport:
    """Starts one step for all its nodes on the first `connect`; each node is then its relay."""

    name = "srun"

    def __init__(self, hosts: Sequence[Host], launcher: Launcher | None = None) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._launcher = launcher or Launcher(os.environ)
        self._lock = threading.Lock()
        self._began = self._closed = False
        self._settled = threading.Event()
        self._refused: dict[str, ReachError] = {}
        self._hub: Hub | None = None
        self._steps: list[Step] = []
        """All that were started, the lasting one last."""

    def connect(self, host: Host, timeout_s: float) -> RelayConnection:
        """Wait until it is known who takes part; ReachError says why a node does not.

        The start of the whole fleet has a deadline of its own, not this one node's `timeout_s`:
        nobody may run anything before the step is known to last.
        """
        with self._lock:
            if not self._began:
                self._began = True
                atexit.register(self.close)
                threading.Thread(target=self._gather, daemon=True).start()
        self._settled.wait(max(timeout_s, START_S))
        hub = self._hub
        link = hub.links.get(host.name) if hub is not None and self._settled.is_set() else None
        if link is None:
            raise self._refused.get(host.name) or _silent(START_S)
        return RelayConnection(link)

    def close(self) -> None:
        """Let the relays go, then srun. Never raises."""
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            hub, self._hub = self._hub, None
        if hub is not None:
            hub.close()
        for step in self._steps[-1:]:
            step.close()
        for step in self._steps:
            step.kill()

    def _gather(self) -> None:
        """Start the step, again without those that fail it, until all that are left are there."""
        try:
            names = list(self._hosts)
            down = words.down(self._launcher.states(names))
            self._refused |= {name: why for name, why in down.items() if name in self._hosts}
            ends = time.monotonic() + START_S
            for _ in range(ATTEMPTS):
                left = [name for name in names if name not in self._refused]
                if not left or self._closed or self._lasts(left, ends):
                    break
        except OSError as error:
            trouble = _no_srun(error.strerror or str(error))
            self._refused = {**dict.fromkeys(self._hosts, trouble), **self._refused}
        finally:
            self._settled.set()

    def _lasts(self, names: list[str], ends: float) -> bool:
        """Start one step on these nodes; whether all of them are there, or known not to come.

        If not, the culprits are in `_refused`, and nothing of the step is left to build on.
        """
        hub, step = self._begin(names)
        waiting = _missing(hub, step, names, ends)
        self._refused |= step.refused
        alone = step.ended.is_set() and hub.links
        if not (waiting or step.breaking or alone):
            return True
        if not step.breaking:
            absent = [name for name in waiting if name not in step.started]
            reason = step.reason or _silent(PATIENCE_S)
            self._refused |= dict.fromkeys(absent or waiting, reason)
        with self._lock:
            self._hub = None
        hub.close()
        threading.Thread(target=step.close, daemon=True).start()
        return False

    def _begin(self, names: list[str]) -> tuple[Hub, Step]:
        secret = secrets.token_bytes(32)
        hub = Hub(names, secret, self._launcher.ports)
        request = {
            "nonce": secrets.token_hex(16),
            "deadline_s": LONGEST_S,
            "addresses": own_addresses(self._hosts[name].address for name in names),
            "port": hub.port,
            "secret": secret.hex(),
        }
        python = _python([self._hosts[name] for name in names])
        command = self._launcher.command(names)
        try:
            with self._lock:
                if self._closed:
                    raise InterruptedError("the run is over")
                step = Step(command, python, request, self._launcher.environ, hub.notify)
                self._hub = hub
                self._steps.append(step)
        except OSError:
            hub.close()
            raise
        return hub, step


def _missing(hub: Hub, step: Step, names: Sequence[str], ends: float) -> list[str]:
    """Wait for everyone to call in or to be refused; who has done neither when that is over."""
    patience = min(ends, time.monotonic() + PATIENCE_S + PER_NODE_S * len(names))
    with hub.changed:
        while waiting := [n for n in names if n not in hub.links and n not in step.refused]:
            if step.breaking:
                patience = min(patience, time.monotonic() + BREAKING_S)
            left_s = patience - time.monotonic()
            if left_s <= 0 or step.ended.is_set():
                break
            hub.changed.wait(left_s)
    return waiting


def _python(hosts: Sequence[Host]) -> str:
    """Choose what runs the relays: the nodes' common Python, unless that is a container's."""
    counted = Counter(host.python for host in hosts)
    python, number = counted.most_common(1)[0]
    return python[0] if len(python) == 1 and number * 2 > len(hosts) else "python3"


def _silent(seconds: float) -> ReachError:
    return ReachError(
        "route",
        f"Slurm was asked to start our step on it, and nothing came back in {seconds:g} s",
        "look whether the node is up, at slurmd and its log there, and at a prolog that hangs",
    )


def _no_srun(why: str) -> ReachError:
    return ReachError(
        "route",
        f"srun cannot be run here: {why}",
        "run inside an allocation where srun is on PATH, or choose --preflight-transport=ssh",
    )
