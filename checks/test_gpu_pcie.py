"""Every GPU has all its PCIe lanes, at full speed while at work, without repeating itself."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.gpu_verdict import conclude_gpus, healths
from preflight.facts.gpu_ways import pcie_troubles
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "gpu.pcie",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
    drains=True,
)


def judge(promised: int | None, facts: Facts, group: Group) -> Verdict:
    """Tell lost lanes, a low generation where the GPU is not idle, and replays."""
    return conclude_gpus(
        promised,
        facts,
        what="PCIe link width",
        needs=("pcie_width",),
        troubles=pcie_troubles(facts, group),
        fine=_fine(facts),
    )


def _fine(facts: Facts) -> str:
    links = {f"x{health.pcie_width}" for _, health in healths(facts) if health.pcie_width}
    return f"PCIe {' and '.join(sorted(links))}, as expected"


def test_gpu_pcie(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised.gpus, node.facts, node.group))
