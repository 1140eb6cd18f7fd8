"""The job's Python starts on the node."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Node, Reach
from preflight.facts.reach import judge_step
from preflight.verdict import Conclude, Verdict

CHECK = Check("reach.python", stage="reach", tier="prolog", requires=("reach.login",))


def judge(reach: Reach) -> Verdict:
    """Tell whether the Python of the inventory ran: the job will start the same one."""
    return judge_step("python", reach)


def test_reach_python(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.reach))
