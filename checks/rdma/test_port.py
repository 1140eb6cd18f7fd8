"""Every RDMA port that the job will use is up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.down_ports import down_ports, idle_interfaces, unsteady_ports
from preflight.facts.oddities import conclude_oddities
from preflight.facts.rdma import ports_of
from preflight.facts.searching_ports import idle_everywhere
from preflight.facts.words import count
from preflight.fleet.model import Promise
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.facts.rdma import Port

CHECK = Check(
    "ib.port", stage="facts", tier="prolog", requires=("reach.answer",), drains=True, heals=True
)


def judge(promised: Promise, facts: Facts, group: Group) -> Verdict:
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
    """Joins a node, its group and the judgement; the frame does the rest."""
    conclude(judge(node.promised, node.facts, node.group))
