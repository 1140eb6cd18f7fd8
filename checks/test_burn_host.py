"""Each side of the host moves and computes as fast as its peers: DIMMs and governors show."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Node
from preflight.facts.burn import Burn
from preflight.facts.burn_words import conclude as held
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "burn.host",
    stage="local",
    tier="standard",
    requires=("burn.device",),
    disturbs=True,
)

SLOW = "look at missing or slow DIMMs (dmidecode, EDAC), the CPU governor and other load: {0}"


def judge(burn: Burn | None) -> Verdict:
    """Hold each NUMA side against the others that have as many CPUs."""
    return held(burn, ("host_copy_gbs", "host_gflops"), what="host memory and CPUs", advice=SLOW)


def test_burn_host(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.burn))
