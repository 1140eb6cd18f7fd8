"""The kernel did not run out of memory, disks or patience on this node."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.host_log import judge_host_log
from preflight.verdict import Conclude, Verdict

CHECK = Check("host.kernel_log", stage="facts", tier="prolog", requires=("reach.answer",))


def judge(facts: Facts) -> Verdict:
    """A read-only file system fails; killed processes, I/O errors and hung tasks warn."""
    return judge_host_log(facts)


def test_host_kernel_log(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts))
