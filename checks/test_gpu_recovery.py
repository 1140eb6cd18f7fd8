"""The driver asks for no reset or reboot: where it does, the next job on that GPU fails."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.gpu_errors import recovery_troubles
from preflight.facts.gpu_verdict import conclude_gpus
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "gpu.recovery",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
    drains=True,
)


def judge(promised: int | None, facts: Facts) -> Verdict:
    """Pass on what the driver itself says must be done first."""
    return conclude_gpus(
        promised,
        facts,
        what="recovery action",
        needs=("recovery_action",),
        troubles=recovery_troubles(facts),
        fine="the driver asks for no recovery action",
        cause="memory",
    )


def test_gpu_recovery(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised.gpus, node.facts))
