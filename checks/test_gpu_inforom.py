"""The InfoROM of every GPU is sound: it keeps the board's error history and its limits."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.gpu_errors import inforom_troubles
from preflight.facts.gpu_verdict import conclude_gpus
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "gpu.inforom",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
    drains=True,
)


def judge(promised: int | None, facts: Facts) -> Verdict:
    """Tell whether the driver finds the InfoROM of a GPU corrupted."""
    return conclude_gpus(
        promised,
        facts,
        what="InfoROM check",
        needs=("inforom_valid",),
        troubles=inforom_troubles(facts),
        fine="the InfoROM of every GPU is valid",
    )


def test_gpu_inforom(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised.gpus, node.facts))
