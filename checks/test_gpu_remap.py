"""No bad memory row or page waits for a reset, and remapping has not failed."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.gpu_errors import remap_troubles
from preflight.facts.gpu_verdict import conclude_gpus
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "gpu.remap",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
    drains=True,
)


def judge(promised: int | None, facts: Facts) -> Verdict:
    """Tell what a reset would mend, and what no reset will."""
    return conclude_gpus(
        promised,
        facts,
        what="state of row remapping or page retirement",
        needs=("remap_pending", "retired_pending"),
        troubles=remap_troubles(facts),
        fine="no memory row or page waits to be taken out of use",
        cause="memory",
    )


def test_gpu_remap(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised.gpus, node.facts))
