"""The node lets this user in without a question."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Node, Reach
from preflight.facts.reach import judge_step
from preflight.verdict import Conclude, Verdict

CHECK = Check("reach.login", stage="reach", tier="prolog", requires=("reach.hostkey",))


def judge(reach: Reach) -> Verdict:
    """Tell whether key or agent were accepted; preflight never asks for a password."""
    return judge_step("login", reach)


def test_reach_login(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.reach))
