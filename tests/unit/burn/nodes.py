"""Nodes for real burn-ins on this machine: the payload in processes of ours, on its CPUs."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.burn.burn_in import (
    BurnPlan,
    Copy,
    Gemm,
    Integrity,
    Launch,
    Load,
    Sustained,
    burn_plan,
)
from preflight.fleet.model import Host, Job
from preflight.run.stages import BurnStage, Nodes
from preflight.transport.ways import transport_for
from tests.unit.fabric.nodes import below, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from preflight.core.remote_command import Connection
    from preflight.facts.burn import Burned

DEADLINE_S = 120.0
LIMITS = {"open": 20.0, **dict.fromkeys(burn_plan("quick").cpu.limit_s.keys() - {"open"}, 20.0)}

SHORT = Load(
    limit_s=LIMITS,
    gemm=Gemm(n=64, samples=9, sample_s=0.005),
    memory=Copy(mib=4, samples=9, sample_s=0.005),
    integrity=Integrity(
        n=128, k=256, products=4, chunk_mib=1, most_mib=4, share=1.0, patterns=1
    ),
    launch=Launch(samples=3, launches=20),
    sustained=Sustained(n=64, seconds=0.1, window_s=0.01),
    pcie=Copy(mib=4, samples=5, sample_s=0.005),
    p2p=Copy(mib=1, samples=3, sample_s=0.005),
)  # fmt: skip
"""Every phase of a device, within a second."""


def long_gemm(
    limit_s: float, samples: int = 400, sample_s: float = 0.01, warm_s: float = 0.0
) -> Load:
    """Stays in the GEMM for seconds, so that a test can strike meanwhile."""
    limits = {**LIMITS, "gemm": limit_s}
    return Load(
        limit_s=limits,
        gemm=Gemm(n=64, samples=samples, sample_s=sample_s, warm_s=warm_s),
        memory=Copy(mib=4, samples=5, sample_s=0.005),
    )


class Node:
    """One node of this machine under a burn-in, in a thread; `burned` waits for its end."""

    def __init__(
        self, load: Load, *, slots: int = 4, name: str = "b1", deadline_s: float = DEADLINE_S
    ) -> None:
        host = Host(name=name, address="127.0.0.1", transport="local", python=(sys.executable,))
        connection: Connection = transport_for("local").connect(host, 5.0)
        plan = BurnPlan(cuda=load, cpu=load)
        nodes = Nodes([host], {name: connection}, "burn-test", deadline_s)
        self.stage = BurnStage(nodes, {}, plan, Job(nproc_per_node=slots))
        self.steps: list[tuple[int, int]] = []
        self._name = name
        self._found: dict[str, Burned] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def burned(self) -> Burned:
        """The node's last event."""
        self._thread.join(DEADLINE_S + 30)
        assert not self._thread.is_alive()
        return self._found[self._name]

    def find(self, name: str, *, early: bool = False) -> int:
        """The process of that name, once the node is in the GEMM; `early`: as soon as it is."""

        def there() -> list[int]:
            step = self.stage._collected[self._name].step
            begun = step is not None and step.phase == "gemm"
            return named(os.getpid(), name) if early or begun else []

        found = wait_for(there, 60)
        assert found, f"no {name} came up"
        return found[0]

    def _run(self) -> None:
        self._found = self.stage.run(lambda done, total, _: self.steps.append((done, total)))


def named(pid: int, name: str) -> list[int]:
    """The processes below one that call themselves so."""
    return [each for each in below(pid) if _comm(each) == name]


def ours(pid: int) -> list[int]:
    """The processes of any burn-in below one."""
    return [each for each in below(pid) if _comm(each).startswith(("preflight-c", "preflight-p2"))]


@contextmanager
def mostly_stopped(pid: int, share: float = 0.04) -> Iterator[None]:
    """Let a process have that share of its time only, meanwhile: by the CPU time it really had.

    Whoever stops it would himself be late on a busy machine: he goes before all others where he
    may, and what it had too much it waits for.
    """
    stop = threading.Event()

    began, had = time.monotonic(), _cpu_s(pid)

    def work() -> None:
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # of this thread alone
        with suppress(OSError):  # it is gone
            while not stop.is_set():
                os.kill(pid, signal.SIGSTOP)
                due = began + (_cpu_s(pid) - had) / share
                stop.wait(max(0.05, due - time.monotonic()))
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.002)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def until(condition: Callable[[], bool], patience_s: float = 60.0) -> bool:
    """Poll until something is so."""
    return bool(wait_for(lambda: [1] if condition() else [], patience_s))


def _cpu_s(pid: int) -> float:
    """The CPU time of a process, by the clock that clock_getcpuclockid(3) tells."""
    return time.clock_gettime((~pid << 3) | 2)


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
