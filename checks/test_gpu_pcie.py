"""Every GPU has all its PCIe lanes, at full speed while at work, without repeating itself."""

from __future__ import annotations

from typing import Final

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.gpu_peers import wanted_of_kind
from preflight.facts.gpu_verdict import conclude_gpus, healths
from preflight.facts.gpu_ways import pcie_troubles
from preflight.verdict import Conclude, Outcome, Verdict, not_run

_WIDEST: Final = 16

CHECK = Check(
    "gpu.pcie",
    stage="facts",
    tier="prolog",
    requires=("reach.answer", "host.driver_hung"),
    drains=True,
)


def judge(promised: int | None, facts: Facts, group: Group) -> Verdict:
    """Tell lost lanes, a low generation where the GPU is not idle, and replays."""
    said = conclude_gpus(
        promised,
        facts,
        what="PCIe link width",
        needs=("pcie_width",),
        troubles=pcie_troubles(facts, group),
        fine=f"PCIe {_widths(facts)}, as expected",
    )
    if said.outcome is Outcome.OK and not _known(facts, group):
        return not_run(f"PCIe {_widths(facts)}: how many lanes board and slot have is not told")
    return said


def _widths(facts: Facts) -> str:
    links = {health.pcie_width for _, health in healths(facts) if health.pcie_width}
    return " and ".join(f"x{width}" for width in sorted(links, reverse=True))


def _known(facts: Facts, group: Group) -> bool:
    """Whether every GPU is told, or its peers tell, how wide it should be; nothing is wider."""
    if wanted_of_kind("pcie_width", facts, group) is not None:
        return True
    told = [health for _, health in healths(facts) if health.pcie_width]
    return all(health.pcie_width_max or health.pcie_width == _WIDEST for health in told)


def test_gpu_pcie(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised.gpus, node.facts, node.group))
