"""How fast each side of the host is: its memory with all CPUs of that side, and their arithmetic.

A DIMM that runs at half speed, or a governor that saves power, slows every data loader.
"""

from __future__ import annotations

import os
import re
import time

from probe.text import attempt

from . import crew
from .bench import Bench, Waited, reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


if TYPE_CHECKING:
    Emit = Callable[["dict[str, Any]"], None]

MIB = 1 << 20
_MOST_THREADS = 64


def measure(plan: dict[str, Any], sides: list[tuple[int, list[int]]], emit: Emit) -> None:
    """One side after the other, each in a process of its own."""
    limit_s = float(plan["limit_s"]["host"])
    for side, cpus in sides:
        error = ""
        try:
            one = crew.Worker("preflight-host", Work(side, cpus, plan["host"]).serve)
            one.tell({})
            answer = one.answer(time.monotonic() + limit_s, limit_s)
        except OSError as failure:
            error = str(failure)
        else:
            for event in answer.events:
                emit(event)
            error = answer.error
            if not answer.how:
                one.end()
        if error:
            emit({"event": "trouble", "what": "host", "error": f"NUMA node {side}: {error}"[:500]})


class Work:
    """The process on one side."""

    def __init__(self, side: int, cpus: list[int], how: dict[str, Any]) -> None:
        self._side = side
        self._cpus = cpus
        self._how = how

    def serve(self, order: Callable[[], dict[str, Any] | None], say: Callable[..., None]) -> None:
        """Measure once."""
        import torch

        if order() is None:
            return
        os.sched_setaffinity(0, self._cpus)
        torch.set_num_threads(min(_MOST_THREADS, len(self._cpus)))
        bench, how, waited = Bench(torch, "cpu", 0), self._how, Waited()
        words = how["mib"] * MIB // 8
        one = torch.ones(words, dtype=torch.float64)
        other = torch.empty_like(one)
        copied = bench.samples(lambda: other.copy_(one), how)
        n = how["n"]
        left, right, out = torch.ones(n, n), torch.ones(n, n), torch.empty(n, n)
        multiplied = bench.samples(lambda: torch.mm(left, right, out=out), how)
        share, threads = waited.share(), torch.get_num_threads()
        where = {"side": self._side, "waited": share, "threads": threads}
        rates = [2 * words * 8 / each / 1e9 for each in copied]
        flops = [2 * n**3 / each / 1e9 for each in multiplied]
        say([reading("host_copy_gbs", rates, **where), reading("host_gflops", flops, **where)])


_NODE = re.compile(r"node(\d{1,4})$")


def sides(sysfs: str) -> list[tuple[int, list[int]]]:
    """Each NUMA node with those of its CPUs that this process may use; one side without sysfs."""
    allowed = os.sched_getaffinity(0)
    folder = sysfs + "/devices/system/node"
    found = []
    for name in _names(folder):
        match = _NODE.match(name)
        cpus = expand(attempt(f"{folder}/{name}/cpulist")) if match else []
        usable = [cpu for cpu in cpus if cpu in allowed]
        if match and usable:
            found.append((int(match.group(1)), usable))
    return sorted(found) or [(0, sorted(allowed))]


def expand(cpulist: str) -> list[int]:
    """The CPUs of a list as sysfs writes it, "0-31,64-95"; none for what is no such list."""
    cpus: list[int] = []
    for part in cpulist.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            cpus += range(int(first), min(int(last or first), int(first) + 65535) + 1)
    return cpus


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
