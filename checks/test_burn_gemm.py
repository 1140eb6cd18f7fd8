"""Every device multiplies matrices as fast as its peers: the slow one of eight holds up all."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Node
from preflight.facts.burn import Burn
from preflight.facts.burn_words import conclude as held
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "burn.gemm",
    stage="local",
    tier="standard",
    requires=("burn.device",),
    disturbs=True,
)

SLOW = "look at clocks, heat and power limit of {0} (nvidia-smi -q -d PERFORMANCE); else exclude it"


def judge(burn: Burn | None) -> Verdict:
    """Hold each device against the others of its kind, here and on other nodes."""
    return held(burn, ("gemm_tflops",), what="bf16 GEMM", advice=SLOW)


def test_burn_gemm(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.burn))
