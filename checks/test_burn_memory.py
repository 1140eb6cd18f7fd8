"""Every device's memory moves data as fast as its peers': a lost stack or a low clock shows."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Node
from preflight.facts.burn import Burn
from preflight.facts.burn_words import conclude as held
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "burn.memory",
    stage="local",
    tier="standard",
    requires=("burn.device",),
    disturbs=True,
)

SLOW = "look at the memory clock, ECC and remapped rows of {0}; reset it, then recheck"


def judge(burn: Burn | None) -> Verdict:
    """Hold each device's memory against that of the others of its kind."""
    return held(burn, ("memory_gbs",), what="memory copy", advice=SLOW)


def test_burn_memory(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.burn))
