"""Every node has the RDMA devices that its group promises."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Majority, Nic, Node
from preflight.facts.rdma import nic_names
from preflight.facts.wiring import natural
from preflight.facts.words import count
from preflight.fleet.model import Promise
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown

CHECK = Check("ib.count", stage="facts", tier="prolog", requires=("reach.answer",), drains=True)

Usual = Majority[tuple[str, ...]]
ADVICE = "look for it in lspci and for mlx5 errors in dmesg; drain, power-cycle, recheck"


def judge(promised: Promise, nics: tuple[Nic, ...] | None, usual: Usual | None = None) -> Verdict:
    """Compare the devices with the promised names or number, or else with the group's."""
    by_peers = usual if usual is not None and usual.decides else None
    wanted = len(promised.hcas) if promised.hcas is not None else promised.nics
    if not nics and not wanted and not (by_peers and by_peers.value):
        return not_run("no RDMA devices promised, none here")
    if nics is None:
        return unknown("the RDMA devices could not be read", advice="look at /sys/class/infiniband")
    names = sorted((nic.name for nic in nics), key=natural)
    seen = len([nic for nic in nics if _counts(nic, promised)])
    origin = "promised"
    if promised.hcas is not None:
        gone = [name for name in promised.hcas if name not in names]
        seen = len(promised.hcas) - len(gone)
    else:
        gone = sorted(set(by_peers.value) - set(names), key=natural) if by_peers else []
    if wanted is None and by_peers is not None:
        wanted, seen = len(by_peers.value), len(names)
        origin = f"on {by_peers.votes} of {by_peers.of} nodes of its group"
    if wanted is not None and seen < wanted:
        which = f"; missing: {', '.join(gone)}" if len(gone) == wanted - seen else ""
        sentence = f"{seen} RDMA devices, {wanted} {origin}{which}"
        return fail(sentence, advice=ADVICE, devices=names, missing=gone)
    return ok(count(len(names), "RDMA device"), devices=names)


def _counts(nic: Nic, promised: Promise) -> bool:
    """Whether a device is of the promised kind; front ends of another link layer are not."""
    layers = {port.link_layer.lower() for port in nic.ports} - {""}
    wanted = {"ib": "infiniband", "roce": "ethernet"}.get(promised.nic_link or "", "")
    return not wanted or not layers or wanted in layers


def test_ib_count(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.promised, node.facts.nics, node.group.majority(nic_names)))
