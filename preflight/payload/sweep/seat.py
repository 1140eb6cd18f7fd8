"""Rails need no launcher: their agent forks them, since the controller has told it who they are.

torch is imported once per node then, nobody writes torchrun's one rendezvous key in turn (33 nodes
on a small machine did not get through it within 70 s), and no node unpickles what others wrote to
it. A rank that the job's own torchrun started sweeps one rail by itself; the rank's environment is
ours (its CUDA_VISIBLE_DEVICES, its NUMA binding), and so is its GPU.
"""

from __future__ import annotations

import os
import select
import signal

from . import lifeline, lines, plan, supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_UP_S = 5.0  # a fork takes milliseconds, on a machine with hundreds of processes a second
_TRIES = 3


def lock_name(request: dict[str, Any]) -> str:
    """Name the lock: the first rail holds the node, as a whole node's agent would."""
    seat = request.get("seat")
    name = str(request["name"])
    return f"{name}/{seat['rail']}" if seat and seat["rail"] else name


def own(event: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Of what torch sees, the part that is this rank's: one GPU, if it is there."""
    if event["event"] == "ready" and request.get("seat"):
        there = gpu() < event["gpus"]
        return dict(event, cuda=event["cuda"] and there, gpus=int(there), bus_ids=[])
    return event


def gpu() -> int:
    """The GPU that the job's rank will take, as its script finds it: cuda:LOCAL_RANK."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def sit(rail: plan.Rail, ends: tuple[int, int]) -> None:
    """Run the rail in a process of its own, which ends with this one; OSError if none comes up.

    A fork takes along whatever locks other threads hold at that moment, for ever: a process that
    hangs in one of them would be silent, and its node be blamed for it. It is replaced.
    """
    for _ in range(_TRIES):
        up, upping = os.pipe()
        pid = _fork(rail, ends, upping)
        os.close(upping)
        alive = bool(select.select([up], [], [], _UP_S)[0]) and os.read(up, 1) != b""
        os.close(up)
        if alive:
            os.close(ends[0])
            return
        os.kill(pid, signal.SIGKILL)
        lifeline.reaped(pid, _UP_S)
    raise OSError(f"none of {_TRIES} processes for rail {rail.rail} came up")


def _fork(rail: plan.Rail, ends: tuple[int, int], upping: int) -> int:
    agent, (writing, orders) = os.getpid(), ends
    pid = os.fork()
    if pid:
        return pid
    try:
        lifeline.die_with_parent(agent, "preflight-rank")
        lifeline.default_signals()
        lifeline.let_go_of_the_wire()
        os.write(upping, b".")
        os.close(upping)
        if rail.rail in rail.go.own_rails:
            supervisor.supervise(rail, writing, orders)
        else:  # another node has fewer ranks
            lines.write(writing, {"event": "rail_done"})
    finally:
        os._exit(0)
