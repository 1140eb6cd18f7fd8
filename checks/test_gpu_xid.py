"""No Xid in the kernel log says that a GPU must be reset, power-cycled or replaced."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.xid_verdict import judge_xids
from preflight.fleet.model import Promise
from preflight.verdict import Conclude, Verdict

CHECK = Check("gpu.xid", stage="facts", tier="prolog", requires=("reach.answer",), drains=True)


def judge(promised: Promise, facts: Facts) -> Verdict:
    """The gravest Xid that is no echo of another; a program's own fault drains nothing."""
    return judge_xids(
        promised.gpus, facts, promised.fatal_xids or (), promised.tolerated_xids or ()
    )


def test_gpu_xid(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised, node.facts))
