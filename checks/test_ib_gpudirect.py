"""NICs can read and write GPU memory themselves."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.direct import uses_rdma, way
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown, warn

CHECK = Check(
    "ib.gpudirect",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
)
ADVICE = "modprobe nvidia_peermem and load it at boot; or the driver's open modules (dma-buf)"


def judge(facts: Facts, group: Group) -> Verdict:
    """Look for nvidia_peermem, or for a kernel and a driver that do dma-buf."""
    if not uses_rdma(facts):
        return not_run("no GPUs beside an active RDMA port here")
    mine = way(facts)
    if mine is None:
        return unknown(
            "neither the kernel's modules nor the driver's kind tell whether NICs reach GPUs",
            advice="look at lsmod for nvidia_peermem and at /proc/driver/nvidia/version",
        )
    if mine:
        return ok(f"NICs reach GPU memory by {mine}", way=mine)
    vote = group.majority(way)
    said = f"no nvidia_peermem, and no dma-buf on kernel {facts.kernel} with this driver"
    if vote is not None and vote.decides and vote.value:
        whom = f"{vote.value} on {vote.votes} of {vote.of} nodes of group {group.name}"
        return fail(f"{said}; {whom}", advice=ADVICE)
    return warn(f"{said}: NCCL copies through host memory, at about half the rate", advice=ADVICE)


def test_ib_gpudirect(node: Node, conclude: Conclude) -> None:
    """Joins a node, its group and the judgement; the frame does the rest."""
    conclude(judge(node.facts, node.group))
