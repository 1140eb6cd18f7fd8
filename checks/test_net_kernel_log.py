"""The kernel log tells of no NIC whose firmware stopped, that did not start, or that flaps."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.nic_log import judge_nic_log
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "net.kernel_log", stage="facts", tier="prolog", requires=("reach.answer",), drains=True
)


def judge(facts: Facts) -> Verdict:
    """A NIC that is sick is named; a link that came up is no fault."""
    return judge_nic_log(facts)


def test_net_kernel_log(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts))
