"""Rails need no launcher: their agent forks them, since the controller has told it who they are.

torch is imported once per node then, nobody writes torchrun's one rendezvous key in turn (33 nodes
on a small machine did not get through it within 70 s), and no node unpickles what others wrote to
it. A rank that the job's own torchrun started sweeps one rail by itself; the rank's environment is
ours (its CUDA_VISIBLE_DEVICES, its NUMA binding), and so is its GPU.
"""

from __future__ import annotations

import os

from . import lines, plan, supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def lock_name(request: dict[str, Any]) -> str:
    """Name the lock: the first rail holds the node, as a whole node's agent would."""
    seat = request.get("seat")
    name = str(request["name"])
    return f"{name}/{seat['rail']}" if seat and seat["rail"] else name


def own(event: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Of what torch sees, the part that is this rank's: one GPU, if it is there."""
    if event["event"] == "ready" and request.get("seat"):
        there = gpu() < event["gpus"]
        return dict(event, cuda=event["cuda"] and there, gpus=int(there))
    return event


def gpu() -> int:
    """The GPU that the job's rank will take, as its script finds it: cuda:LOCAL_RANK."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def sit(rail: plan.Rail, ends: tuple[int, int]) -> None:
    """Run the rail in a process of its own, which ends with this one."""
    agent, (writing, orders) = os.getpid(), ends
    if os.fork():
        os.close(writing)
        return
    try:
        if rail.rail < rail.go.rails:
            supervisor.supervise(rail, writing, orders, agent)
        else:  # another node has fewer ranks
            lines.write(writing, {"event": "rail_done"})
    finally:
        os._exit(0)
