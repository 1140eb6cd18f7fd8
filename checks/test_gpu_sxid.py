"""No NVSwitch of the node wrote a fatal SXid: it takes NVLink away from all of its GPUs."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.switch_log import judge_sxids
from preflight.verdict import Conclude, Verdict

CHECK = Check("gpu.sxid", stage="facts", tier="prolog", requires=("reach.answer",), drains=True)


def judge(facts: Facts) -> Verdict:
    """A fatal SXid since the driver was loaded; non-fatal ones are handled by the driver."""
    return judge_sxids(facts)


def test_gpu_sxid(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts))
