"""The nine faults of a fleet's wires and workers, each with the part that is at fault.

`with planted(lab, Fault("lossy link", ("h3",))): ...` plants and, in the end, leaves a healthy lab.
Faults of a wire are there before the run. A worker is struck while it measures a pair, and the dead
link dies then too: before the run it is a host that cannot be reached.
"""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tests.lab import wire
from tests.lab.inside import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.lab.cluster import Lab
    from tests.lab.inside import Inside

    Plant = Callable[[Lab, "Fault"], AbstractContextManager[None]]

Kind = Literal[
    "slow link",
    "lossy link",
    "one-direction loss",
    "spiking cable",
    "dead link",
    "stalled host",
    "killed worker",
    "hung worker",
    "firewall",
]
Way = Literal["in", "out"]
Level = Literal["node", "path"]
"""Hosts of the lab have one rail: an endpoint of theirs is the node."""

_LONGEST_S = 120.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: a node's, or of the path between two nodes in fleet order."""

    kind: Kind
    nodes: tuple[str, ...]
    way: Way = "in"
    """Of a one-direction loss: whether what comes in is lost, or what goes out."""
    delay_s: float = 0.1
    """Of a strike: how long after the first pair is under way."""

    @property
    def level(self) -> Level:
        """Where it lies."""
        return "path" if len(self.nodes) > 1 else "node"

    @property
    def component(self) -> str:
        """What a report is to name."""
        return f"pair {'-'.join(self.nodes)}" if self.level == "path" else self.nodes[0]


@contextmanager
def planted(lab: Lab, *faults: Fault) -> Iterator[None]:
    """Plant them all; RuntimeError in the end if one never came about."""
    with ExitStack() as stack:
        for fault in faults:
            stack.enter_context(_PLANTS[fault.kind](lab, fault))
        yield


def _slow_link(lab: Lab, fault: Fault) -> AbstractContextManager[None]:
    return wire.slow_link(lab.hosts[fault.nodes[0]])


@contextmanager
def _lossy_link(lab: Lab, fault: Fault) -> Iterator[None]:
    with _loses(lab, fault, "in"), _loses(lab, fault, "out"):
        yield


def _one_direction_loss(lab: Lab, fault: Fault) -> AbstractContextManager[None]:
    return _loses(lab, fault, fault.way)


@contextmanager
def _loses(lab: Lab, fault: Fault, way: Way) -> Iterator[None]:
    """What leaves the host is lost at its peers: in its own kernel the sender would notice."""
    host = lab.hosts[fault.nodes[0]]
    with ExitStack() as stack:
        if way == "in":
            stack.enter_context(wire.lossy_link(host))
        for peer in lab.hosts.values():
            if way == "out" and peer is not host:
                stack.enter_context(wire.lossy_link(peer, source=host))
        yield


def _spiking_cable(lab: Lab, fault: Fault) -> AbstractContextManager[None]:
    return wire.spiking_cable(lab.hosts[fault.nodes[0]], per_mille=50, rest_ms=100)


@contextmanager
def _dead_link(lab: Lab, fault: Fault) -> Iterator[None]:
    with ExitStack() as cut, _striker(lab, fault, "watch") as striker:

        def strike() -> None:
            until(lambda: "struck" in striker.log.read_text(), "a pair to cut", _LONGEST_S)
            cut.enter_context(wire.dead_link(lab.hosts[fault.nodes[0]]))

        thread = threading.Thread(target=strike, daemon=True)
        thread.start()
        yield
        thread.join()


@contextmanager
def _stalled_host(lab: Lab, fault: Fault) -> Iterator[None]:
    with _striker(lab, fault, "stall"):
        yield


@contextmanager
def _killed_worker(lab: Lab, fault: Fault) -> Iterator[None]:
    with _striker(lab, fault, "KILL"):
        yield


@contextmanager
def _hung_worker(lab: Lab, fault: Fault) -> Iterator[None]:
    with _striker(lab, fault, "STOP"):
        yield


@contextmanager
def _firewall(lab: Lab, fault: Fault) -> Iterator[None]:
    one, other = (lab.hosts[name] for name in fault.nodes)
    with wire.firewall(one, source=other), wire.firewall(other, source=one):
        yield


@contextmanager
def _striker(lab: Lab, fault: Fault, action: str) -> Iterator[Inside]:
    """Have something inside the host strike at its measuring process."""
    script = Path(__file__).with_name("striker.py")
    host = lab.hosts[fault.nodes[0]]
    striker = host.spawn([sys.executable, "-I", script, action, str(fault.delay_s)])
    try:
        yield striker
    finally:
        striker.kill()
    if "struck" not in striker.log.read_text():
        raise RuntimeError(f"no worker of {host.name} was struck: {striker.log.read_text()!r}")


_PLANTS: dict[Kind, Plant] = {
    "slow link": _slow_link,
    "lossy link": _lossy_link,
    "one-direction loss": _one_direction_loss,
    "spiking cable": _spiking_cable,
    "dead link": _dead_link,
    "stalled host": _stalled_host,
    "killed worker": _killed_worker,
    "hung worker": _hung_worker,
    "firewall": _firewall,
}
