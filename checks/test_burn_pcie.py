"""Every GPU talks to the host as fast as its peers, from near and far NUMA sides."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Node
from preflight.facts.burn import Burn
from preflight.facts.burn_words import conclude as held
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "burn.pcie",
    stage="local",
    tier="standard",
    requires=("burn.device",),
    disturbs=True,
)

SLOW = "look at PCIe generation and width of {0} under load, its slot or riser, ACS and IOMMU"


def judge(burn: Burn | None) -> Verdict:
    """Hold both directions against GPUs with as near a side of the host."""
    return held(burn, ("h2d_gbs", "d2h_gbs"), what="host copies", advice=SLOW)


def test_burn_pcie(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.burn))
