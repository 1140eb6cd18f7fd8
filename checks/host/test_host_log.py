"""The kernel log tells of no error of PCIe, CPU or memory that hardware could not correct."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.hardware_log import judge_hardware_log
from preflight.verdict import Conclude, Verdict

CHECK = Check(
    "host.hardware_errors", stage="facts", tier="prolog", requires=("reach.answer",), drains=True
)


def judge(facts: Facts) -> Verdict:
    """Uncorrected errors, and storms of corrected ones, each with its part."""
    return judge_hardware_log(facts)


def test_host_hardware_errors(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts))
