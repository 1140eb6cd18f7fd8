"""The probe ran on the node and its answer can be used."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Node, Reach
from preflight.facts.reach import judge_step
from preflight.verdict import Conclude, Verdict

CHECK = Check("reach.answer", stage="reach", tier="prolog", requires=("reach.python",))


def judge(reach: Reach) -> Verdict:
    """Tell whether the answer was whole, of this run, and within its limits."""
    return judge_step("answer", reach)


def test_reach_answer(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.reach))
