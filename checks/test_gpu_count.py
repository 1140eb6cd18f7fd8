"""Every node answers with the GPUs its group promises."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Gpu, Node
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

CHECK = Check(
    "gpu.count",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
    drains=True,
)


def judge(promised: int | None, gpus: tuple[Gpu, ...] | None) -> Verdict:
    """Compare the GPUs that answered with the number the inventory promises."""
    if not gpus and not promised:
        return not_run("no GPUs promised, none here")
    if gpus is None:
        return unknown("NVML did not answer", advice="load the driver, then recheck")
    bus_ids = [gpu.bus_id for gpu in gpus]
    if promised is not None and len(gpus) < promised:
        # A GPU that fell off the bus leaves Xid 79 and comes back only after a cold start.
        return fail(
            f"{len(gpus)} of {promised} GPUs answer",
            advice="look for Xid 79; drain, power-cycle, recheck",
            bus_ids=bus_ids,
        )
    if promised is not None and len(gpus) > promised:
        return warn(
            f"{len(gpus)} GPUs, {promised} promised",
            advice="correct the inventory",
            bus_ids=bus_ids,
        )
    return ok(count(len(gpus), "GPU"), bus_ids=bus_ids)


def test_gpu_count(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised.gpus, node.facts.gpus))
