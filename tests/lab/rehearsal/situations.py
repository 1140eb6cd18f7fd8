"""What can befall a rehearsed fleet, and what a run must then say.

`situation.plant(rehearsal, "h2", slot=1)`, run preflight, `situation.off(named(report), "h2")`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tests.lab.rehearsal.fake_cuda import nccl_text
from tests.lab.rehearsal.scenario import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lab.named import Named
    from tests.lab.rehearsal.scenario import Rehearsal

    Plant = Callable[[Rehearsal, str, int], None]

Verdict = Literal["culprit", "nobody", "nobody else"]
"""Exactly the host must be named; nobody may be; or at most what that host takes part in."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One of them, on one host and, where it is one GPU's, at one slot."""

    name: str
    plant: Plant
    must_name: Verdict
    reason: str = ""
    """What NCCL gave as the reason, which the report must keep."""

    def wrong(self, named: Named, host: str, *, pairs_only: bool = False) -> tuple[str, ...]:
        """Healthy hosts that are named: of two hosts none, where the other one is named, too."""
        said = (*named.components, *named.open)
        guilty = {host} if self.must_name != "nobody" else set()
        strangers = tuple(name for name in said if guilty.isdisjoint(hosts_of(name)))
        return () if pairs_only and guilty and len(strangers) < len(said) else strangers

    def off(self, named: Named, host: str, *, pairs_only: bool = False) -> str:
        """What is not right about a run; nothing if all is.

        `pairs_only`: of two hosts nobody can say whose a fault of the wire is: a set that holds the
        culprit is right.
        """
        said = (*named.components, *named.open)
        strangers = self.wrong(named, host, pairs_only=pairs_only)
        if strangers:
            return f"named {', '.join(strangers)}"
        if self.must_name == "nobody" and said:
            return f"named {', '.join(said)}"
        if self.must_name == "nobody" and named.exit != 0:
            return f"exit {named.exit}"
        if self.must_name == "culprit" and host not in named.components:
            return "" if pairs_only and said else f"did not name {host}, but {said or 'nobody'}"
        return f"{named.lost} verdicts are missing" if named.lost else ""


def hosts_of(component: str) -> set[str]:
    """The hosts of "h3", "pair h1-h2", "h1 or h2", "rail 1 of h2"."""
    words = component.replace("-", " ").replace(",", " ").split()
    return {word for word in words if word[:1] == "h" and word[1:].isdigit()}


def _faulty(fault: Fault, *, one_gpu: bool = True) -> Plant:
    def plant(rehearsal: Rehearsal, host: str, slot: int) -> None:
        rehearsal.plant(host, replace(fault, slot=slot if one_gpu else None))

    return plant


def _changed(**changes: object) -> Plant:
    def plant(rehearsal: Rehearsal, host: str, slot: int) -> None:
        del slot
        rehearsal.change(host, **changes)

    return plant


def _without_gpu(rehearsal: Rehearsal, host: str, slot: int) -> None:
    one = rehearsal.lab.hosts[host]
    one.set_scenario(one.scenario.without_gpu(slot))
    rehearsal.write(one)


def _port_down(rehearsal: Rehearsal, host: str, slot: int) -> None:
    one = rehearsal.lab.hosts[host]
    one.set_scenario(one.scenario.nic(slot, state="1: DOWN", phys_state="2: Polling"))
    rehearsal.write(one)


def _no_connection(rehearsal: Rehearsal, host: str, slot: int) -> None:
    error = nccl_text.modify_qp_failed(rehearsal.lab.hosts[host].scenario.nics[slot].name)
    rehearsal.plant(host, Fault("connect error", slot, last_error=error))


def _breaks(rehearsal: Rehearsal, host: str, slot: int) -> None:
    """In an operation; the process that is killed for it has its GPU to itself until it is gone."""
    rehearsal.plant(host, Fault("network error", slot, after=100))
    rehearsal.change(host, exclusive=True, exit_s=3.0)


def _healthy(rehearsal: Rehearsal, host: str, slot: int) -> None:
    del rehearsal, host, slot


SITUATIONS = (
    Situation("healthy", _healthy, "nobody"),
    Situation("slow rail", _faulty(Fault("slow rail", factor=0.5)), "culprit"),
    Situation("slow node", _faulty(Fault("slow node", factor=0.5), one_gpu=False), "culprit"),
    Situation("spikes", _faulty(Fault("spikes", rate=0.02, ms=10.0)), "culprit"),
    Situation("hung once", _faulty(Fault("hang", once=True, after=100)), "nobody else"),
    Situation("hung always", _faulty(Fault("hang", after=100)), "culprit"),
    Situation("GPU missing", _without_gpu, "culprit"),
    Situation("wrong sum", _faulty(Fault("wrong sum", rate=0.05, from_bytes=1 << 20)), "culprit"),
    Situation("socket fallback", _changed(ib_plugin=False), "culprit"),
    Situation("NVLink fallback", _changed(p2p="none"), "culprit"),
    Situation("slow exit", _changed(exit_s=8.0), "nobody"),
    Situation("init skew", _changed(init_s=15.0), "nobody"),
    Situation("host stalls", _changed(stalls_per_s=20.0, stall_ms=3.0), "nobody else"),
    Situation("NIC port down", _port_down, "culprit"),
    Situation("no connection", _no_connection, "culprit", "Call to ibv_modify_qp failed with 110"),
    Situation("connection breaks", _breaks, "culprit", "NET/IB: Got completion from peer"),
)
