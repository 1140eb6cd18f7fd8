"""Every reading of a GPU comes back without an error: one that falls off the bus begins so."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.gpu_errors import answer_troubles
from preflight.facts.gpu_verdict import conclude_gpus
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "gpu.readings",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
    drains=True,
)


def judge(promised: int | None, facts: Facts) -> Verdict:
    """Name the readings that NVML answered with an error."""
    return conclude_gpus(
        promised,
        facts,
        what="readings",
        needs=(
            "temperature_c",
            "memory_total_mib",
            "performance_state",
            "ecc_volatile_uncorrected",
            "remap_pending",
        ),
        troubles=answer_troubles(facts),
        fine="no reading of its GPUs fails",
        cause="readings",
    )


def test_gpu_readings(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised.gpus, node.facts))
