"""Every two GPUs of a node copy to each other as fast as pairs that are joined alike."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Node
from preflight.facts.burn import Burn
from preflight.facts.burn_words import conclude as held
from preflight.verdict import Conclude, Verdict, not_run

CHECK = Check(
    "burn.p2p",
    stage="local",
    tier="standard",
    requires=("burn.device",),
    disturbs=True,
)

SLOW = "look at NVLink errors and link counts (nvidia-smi nvlink -s -e) and peer access: {0}"


def judge(burn: Burn | None) -> Verdict:
    """Hold each way against those joined alike, here and on other nodes."""
    if burn is not None and (burn.state, burn.kind, burn.devices) == ("measured", "cuda", 1):
        return not_run("1 GPU here: no other to copy to")
    return held(burn, ("p2p_gbs",), what="copy", advice=SLOW)


def test_burn_p2p(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.burn))
