"""The node's name leads to an address."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Node, Reach
from preflight.facts.reach import judge_step
from preflight.verdict import Conclude, Verdict

CHECK = Check("reach.name", stage="reach", tier="prolog")


def judge(reach: Reach) -> Verdict:
    """Tell whether the name resolved: a typo or a missing DNS entry stops every job too."""
    return judge_step("name", reach)


def test_reach_name(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.reach))
