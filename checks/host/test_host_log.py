"""The kernel log: errors of hardware, and memory, disks or tasks in trouble."""

from __future__ import annotations

from preflight.check import Check
from preflight.checks.host.hardware_log import judge_hardware_log, judge_host_log
from preflight.facts import Facts, Node
from preflight.verdict import Conclude, Verdict

CHECKS = (
    Check(
        "host.hardware_errors",
        stage="facts",
        tier="prolog",
        requires=("reach.answer",),
        drains=True,
    ),
    Check("host.kernel_log", stage="facts", tier="prolog", requires=("reach.answer",)),
)


def judge_hardware_errors(facts: Facts) -> Verdict:
    """Uncorrected errors, and storms of corrected ones, each with its part."""
    return judge_hardware_log(facts)


def test_host_hardware_errors(node: Node, conclude: Conclude) -> None:
    """The kernel log tells of no error of PCIe, CPU or memory that hardware could not correct."""
    conclude(judge_hardware_errors(node.facts))


def judge_kernel_log(facts: Facts) -> Verdict:
    """A read-only file system fails; killed processes, I/O errors and hung tasks warn."""
    return judge_host_log(facts)


def test_host_kernel_log(node: Node, conclude: Conclude) -> None:
    """The kernel did not run out of memory, disks or patience on this node."""
    conclude(judge_kernel_log(node.facts))
