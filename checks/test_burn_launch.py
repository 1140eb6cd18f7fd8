"""Every device starts its smallest kernel as soon as its peers: slow CPUs and drivers show."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Node
from preflight.facts.burn import Burn
from preflight.facts.burn_words import conclude as held
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "burn.launch",
    stage="local",
    tier="standard",
    requires=("burn.device",),
    disturbs=True,
)

SLOW = "look at the CPU governor, other load and the driver settings near {0}"


def judge(burn: Burn | None) -> Verdict:
    """Hold the time from call to result against the others'."""
    return held(burn, ("launch_us",), what="kernel launch", advice=SLOW)


def test_burn_launch(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.burn))
