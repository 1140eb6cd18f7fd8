"""The agent of one node's burn-in: loads its devices phase by phase, and sends each result at once.

Each device has a process of its own. They all end with this process, and this process ends with its
controller, its lease or its deadline.
"""

from __future__ import annotations

import os
import time
from typing import Any

import children
from start import Emit, Read
from sweep import agent, cuda

from . import crew, paths

_PHASES = ("gemm", "memory", "integrity", "launch", "sustained", "pcie")
_LAST_WORDS_S = 6.0  # the controller stops listening 5 s before our deadline


def run(request: dict[str, Any], read_line: Read, emit: Emit) -> None:
    """Serve one burn-in; the events are those of preflight.facts.burn, docs/internals/wire.md."""
    ends = time.monotonic() + request["deadline_s"] - _LAST_WORDS_S
    agent.serve_controller(request, read_line, emit)
    children.adopt_orphans()
    lock = agent.claim(str(request["name"]))
    if lock is None:
        emit({"event": "busy", "error": agent.lock_holder(str(request["name"]))[0]})
        return
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML's order, not the fastest GPU first
    description = cuda.describe()
    if description["event"] == "no_torch":
        emit(description)
        return
    kind = "cuda" if description["cuda"] else "cpu"
    count = description["gpus"] if description["cuda"] else int(request["slots"])
    emit({"event": "ready", "torch": description["torch"], "kind": kind, "devices": count})
    if kind == "cuda" or not request["gpus"]:  # else this torch cannot use the node's GPUs
        _load(request["plan"][kind], kind, count, request.get("sysfs", "/sys"), emit, ends=ends)
    emit({"event": "done"})
    lock.close()


def _load(
    plan: dict[str, Any], kind: str, count: int, sysfs: str, emit: Emit, *, ends: float
) -> None:
    """Run the plan's phases; a device that fails in one takes no part in later ones.

    `ends`: when all results must be sent, by the monotonic clock.
    """
    sides = paths.sides(sysfs)
    workers = crew.Crew(kind, count, plan, sides, emit)
    phases = ["open", *(name for name in _PHASES if plan.get(name))]
    path_phases = [name for name in ("p2p", "host", "nic") if plan.get(name)]
    steps = len(phases) + len(path_phases)
    for done, phase in enumerate(phases):
        emit({"event": "step", "phase": phase, "done": done, "of": steps})
        workers.run(phase)
    devices = workers.dismiss()
    for done, phase in enumerate(path_phases, len(phases)):
        emit({"event": "step", "phase": phase, "done": done, "of": steps})
        if phase == "p2p":
            paths.measure_pairs(kind, devices, plan, emit)
        elif phase == "host":
            paths.measure_host(plan, sides, emit)
        else:
            limit_s = float(plan["limit_s"]["nic"])
            paths.measure_nics(
                plan["nic"], sysfs, emit, sides, min(ends, time.monotonic() + limit_s)
            )
