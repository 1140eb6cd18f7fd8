"""No GPU has met memory errors that ECC could not correct: they crash the job or its numbers."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.gpu_errors import ecc_troubles
from preflight.facts.gpu_verdict import conclude_gpus
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "gpu.ecc",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
    drains=True,
)


def judge(promised: int | None, facts: Facts) -> Verdict:
    """Tell recent uncorrectable errors, worn SRAM, and storms of corrected errors."""
    return conclude_gpus(
        promised,
        facts,
        what="count of uncorrectable ECC errors",
        needs=("ecc_volatile_uncorrected",),
        troubles=ecc_troubles(facts),
        fine="no uncorrectable ECC errors since the driver was loaded",
        cause="memory",
    )


def test_gpu_ecc(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised.gpus, node.facts))
