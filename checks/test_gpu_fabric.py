"""Every GPU has joined the NVSwitch fabric: without it CUDA does not start (error 802)."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.gpu_verdict import conclude_gpus
from preflight.facts.gpu_ways import fabric_troubles
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "gpu.fabric",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
    drains=True,
    heals=True,
)


def judge(promised: int | None, facts: Facts) -> Verdict:
    """Tell GPUs whose registration the fabric manager has not completed, or finds unhealthy."""
    return conclude_gpus(
        promised,
        facts,
        what="state of the NVSwitch fabric",
        needs=("fabric_state",),
        troubles=fabric_troubles(facts),
        fine="every GPU has joined the NVSwitch fabric",
    )


def test_gpu_fabric(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised.gpus, node.facts))
