"""The node is the one we know, and nobody in its place."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Node, Reach
from preflight.facts.reach import judge_step
from preflight.verdict import Conclude, Verdict

CHECK = Check("reach.hostkey", stage="reach", tier="prolog", requires=("reach.route",))


def judge(reach: Reach) -> Verdict:
    """Tell whether the host key is the known one; an unknown or changed key is never accepted."""
    return judge_step("hostkey", reach)


def test_reach_hostkey(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.reach))
