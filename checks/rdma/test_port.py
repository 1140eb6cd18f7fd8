"""Every RDMA device is there, and its ports are up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.check import Check
from preflight.checks.gpu.deviations import conclude_oddities
from preflight.checks.rdma.port_faults import (
    down_ports,
    idle_everywhere,
    idle_interfaces,
    unsteady_ports,
)
from preflight.checks.rdma.ports import nic_names, ports_of
from preflight.facts import Facts, Group, Majority, Nic, Node
from preflight.facts.boards import natural
from preflight.facts.words import count
from preflight.fleet.model import Promise
from preflight.verdict import Conclude, Verdict, fail, not_run, ok, unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.checks.rdma.ports import Port

CHECKS = (
    Check(
        "ib.port", stage="facts", tier="prolog", requires=("reach.answer",), drains=True, heals=True
    ),
    Check("ib.count", stage="facts", tier="prolog", requires=("reach.answer",), drains=True),
)


def judge_port(promised: Promise, facts: Facts, group: Group) -> Verdict:
    """Hold each port that is not up against promise, group and its own peers."""
    if facts.nics is None:
        tried = any(problem.startswith("nics") for problem in facts.problems)
        if not (promised.nics or promised.hcas or tried):
            return not_run("no RDMA ports promised, none told")
        return unknown("the RDMA ports could not be read", advice="look at /sys/class/infiniband")
    ports = ports_of(facts)
    if not ports and not facts.nics:
        return not_run("no RDMA devices here")
    odd = conclude_oddities(
        [
            *down_ports(promised, facts, group),
            *idle_interfaces(facts),
            *unsteady_ports(facts),
        ]
    )
    if odd is not None:
        return odd
    mute = [nic.name for nic in facts.nics if not nic.ports]
    mute += [port.name for port in ports if not port.state]
    if mute:
        said = f"the state of {', '.join(mute)} could not be read"
        return unknown(said, advice="look at the ports' state in /sys/class/infiniband")
    return _told(ports, meant=_meant(promised, facts, group))


def _told(ports: Sequence[Port], *, meant: bool) -> Verdict:
    """Nothing is odd; but where nothing is up, somebody must have meant it so."""
    active = [port.name for port in ports if port.active]
    if not active and not meant:
        listed = ", ".join(f"{port.name} {port.words()}" for port in ports[:4])
        said = f"no port is ACTIVE ({listed}), and nothing says whether any should be"
        return unknown(said, advice="name the ports that jobs use in the inventory (hcas, nics)")
    idle = [f"{port.name} {port.words()}" for port in ports if not port.active]
    said = f"{count(len(active), 'port')} ACTIVE"
    if idle:
        said += f"; not used by anything known: {', '.join(idle[:4])}" + (" ..." * (len(idle) > 4))  # noqa: PLR2004
    return ok(said, active=active, idle=idle)


def _meant(promised: Promise, facts: Facts, group: Group) -> bool:
    """Whether somebody says that there may be no port that is up."""
    return promised.nics is not None or promised.hcas is not None or idle_everywhere(facts, group)


def test_ib_port(node: Node, conclude: Conclude) -> None:
    """Every RDMA port that the job will use is up."""
    conclude(judge_port(node.promised, node.facts, node.group))


Usual = Majority[tuple[str, ...]]
ADVICE = "look for it in lspci and for mlx5 errors in dmesg; drain, power-cycle, recheck"


def judge_count(
    promised: Promise, nics: tuple[Nic, ...] | None, usual: Usual | None = None
) -> Verdict:
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
    """Every node has the RDMA devices that its group promises."""
    conclude(judge_count(node.promised, node.facts.nics, node.group.majority(nic_names)))
