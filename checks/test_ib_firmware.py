"""RDMA devices of one kind run one firmware."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.rdma import chip, firmwares, most
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown, warn

CHECK = Check("ib.firmware", stage="facts", tier="prolog", requires=("reach.answer",))


def judge(facts: Facts, group: Group) -> Verdict:
    """Compare each device's firmware with the group's, or else with its own peers'."""
    if not facts.nics:
        return not_run("no RDMA devices here")
    mute = [nic.name for nic in facts.nics if not nic.firmware]
    vote = group.majority(firmwares)
    by_group = vote if vote is not None and vote.decides else None
    odd = []
    for nic in facts.nics:
        alike = [n.firmware for n in facts.nics if chip(n) == chip(nic) and n.firmware]
        usual, origin = most(alike), "on its peers"
        if by_group is not None:
            usual = next((fw for kind, fw in by_group.value if kind == chip(nic)), None)
            origin = f"on {by_group.votes} of {by_group.of} nodes of group {group.name}"
            if (chip(nic), nic.firmware) in by_group.value:
                continue
        if nic.firmware and usual is not None and nic.firmware != usual:
            odd.append(f"{nic.name} has firmware {nic.firmware}, {usual} {origin}")
    if odd:
        more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
        advice = "update it to the others' firmware (mlxfwmanager, flint), then reboot"
        return warn(odd[0] + more, advice=advice, findings=odd)
    if mute:
        said = f"{', '.join(mute)} would not tell the firmware"
        return unknown(said, advice="look at fw_ver in /sys/class/infiniband")
    kinds = sorted({nic.firmware for nic in facts.nics})
    return ok(f"{len(facts.nics)} RDMA devices on {', '.join(kinds)}", firmwares=kinds)


def test_ib_firmware(node: Node, conclude: Conclude) -> None:
    """Joins a node, its group and the judgement; the frame does the rest."""
    conclude(judge(node.facts, node.group))
