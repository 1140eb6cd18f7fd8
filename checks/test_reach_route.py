"""The node's login port accepts a connection."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Node, Reach
from preflight.facts.reach import judge_step
from preflight.verdict import Conclude, Verdict

CHECK = Check("reach.route", stage="reach", tier="prolog", requires=("reach.name",))


def judge(reach: Reach) -> Verdict:
    """Tell whether a connection came about: the node may be down, or a firewall in between."""
    return judge_step("route", reach)


def test_reach_route(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.reach))
