"""What one device's process does, phase by phase; its GPU is touched by nobody else of ours."""

from __future__ import annotations

import os

from probe import sysfs
from probe.text import clean
from sweep import cuda

from . import copies, gemm, integrity, launch, sustained
from .bench import Bench, Waited

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Order = Callable[[], "dict[str, Any] | None"]

_PHASES = {
    "gemm": gemm.measure,
    "memory": copies.inside,
    "integrity": integrity.prove,
    "launch": launch.measure,
    "sustained": sustained.measure,
}


class Work:
    """One device of a node, as its process sees it."""

    def __init__(
        self, kind: str, index: int, plan: dict[str, Any], sides: list[tuple[int, list[int]]]
    ) -> None:
        self._kind = kind
        self._index = index
        self._plan = plan
        self._sides = sides

    def serve(self, order: Order, say: Callable[..., None]) -> None:
        """Do what is ordered until there is nobody to order."""
        import torch  # loaded by the agent already; here it only gets its name

        torch.set_num_threads(1)
        bench = Bench(torch, self._kind, self._index)
        while True:
            told = order()
            if told is None:
                return
            phase = told["phase"]
            waited = Waited()
            if phase == "open":
                events = [self._open(bench)]
            elif phase == "pcie":
                events = copies.across(bench, self._plan[phase], self._sides)
            else:
                events = _PHASES[phase](bench, self._plan[phase])
            share = waited.share()
            say([dict(e, waited=share) if e["event"] == "reading" else e for e in events])

    def _open(self, bench: Bench) -> dict[str, Any]:
        """Come up: the driver makes a context, and the process goes next to its device."""
        found: dict[str, Any] = {"event": "opened", "name": "CPU", "bus_id": "", "numa": None}
        if self._kind == "cpu":
            cpus = sorted(os.sched_getaffinity(0))
            cpu = cpus[self._index % len(cpus)]
            os.sched_setaffinity(0, {cpu})
            found["name"] = f"CPU {cpu}"
            return found
        torch = bench.torch
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        cuda.initialise(torch, self._index)
        torch.ones(1, device=bench.device).add_(1)
        bench.sync()
        known = torch.cuda.get_device_properties(bench.device)
        found["name"] = clean(known.name)
        found["memory_mib"] = known.total_memory >> 20
        found["bus_id"] = bench.bus_id()
        if found["bus_id"]:
            found["numa"] = sysfs.numa("/sys/bus/pci/devices/" + found["bus_id"])
        self._go_near(found["numa"])
        return found

    def _go_near(self, numa: int | None) -> None:
        near = dict(self._sides).get(numa) if numa is not None else None
        if near:
            os.sched_setaffinity(0, near)
