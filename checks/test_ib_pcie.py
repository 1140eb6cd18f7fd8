"""Every RDMA device has all its PCIe lanes at full speed: half a slot is half a rail."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.nic_pcie import odd_slots, words
from preflight.facts.oddities import conclude_oddities
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown

CHECK = Check("ib.pcie", stage="facts", tier="prolog", requires=("reach.answer",), drains=True)


def judge(facts: Facts, group: Group) -> Verdict:
    """Hold lanes and generation against group, own peers and card, and against the port's rate."""
    odd = conclude_oddities(odd_slots(facts, group))
    if odd is not None:
        return odd
    nics = facts.nics or ()
    if not nics:
        return not_run("no RDMA devices here")
    mute = [nic.name for nic in nics if nic.pcie is None and nic.pci_path is not None]
    if mute:
        said = f"the PCIe link of {', '.join(mute)} could not be read"
        return unknown(said, advice="look at current_link_width in /sys/bus/pci/devices")
    told = [nic for nic in nics if nic.pcie is not None and nic.pcie.width]
    if not told:
        return not_run("RDMA devices without a PCIe link of their own: virtual, or not told")
    kinds = sorted({words(nic) for nic in told})
    links = {nic.name: words(nic) for nic in told}
    return ok(f"{len(told)} RDMA devices on {', '.join(kinds)}", links=links)


def test_ib_pcie(node: Node, conclude: Conclude) -> None:
    """Joins a node, its group and the judgement; the frame does the rest."""
    conclude(judge(node.facts, node.group))
