"""A job finds as much GPU memory, and as wide a window to it, as on the others of the group."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.gpu_settings import memory_troubles, used_troubles
from preflight.facts.gpu_verdict import conclude_gpus
from preflight.facts.words import memory
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "gpu.memory",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
    drains=True,
)


def judge(promised: int | None, facts: Facts, group: Group) -> Verdict:
    """Compare total, reserved and BAR1 memory; captured texts also tell memory nobody owns."""
    return conclude_gpus(
        promised,
        facts,
        what="amount of memory",
        needs=("memory_total_mib",),
        troubles=[*memory_troubles(facts, group), *used_troubles(facts)],
        fine=_fine(facts),
    )


def _fine(facts: Facts) -> str:
    sizes = sorted({gpu.memory_total_mib or 0 for gpu in facts.gpus or ()})
    return f"{' and '.join(memory(size) for size in sizes)} of memory on each GPU"


def test_gpu_memory(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised.gpus, node.facts, node.group))
