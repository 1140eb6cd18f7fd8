"""Every RDMA port that the job will use is up."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.down_ports import down_ports, idle_interfaces, unsteady_ports
from preflight.facts.oddities import conclude_oddities
from preflight.facts.rdma import ports_of
from preflight.facts.words import count
from preflight.fleet.model import Promise
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown

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
    active = [port.name for port in ports if port.active]
    idle = [f"{port.name} {port.words()}" for port in ports if not port.active]
    said = f"{count(len(active), 'port')} ACTIVE"
    if idle:
        said += f"; not used by anything known: {', '.join(idle[:4])}" + (" ..." * (len(idle) > 4))  # noqa: PLR2004
    return ok(said, active=active, idle=idle)


def test_ib_port(node: Node, conclude: Conclude) -> None:
    """Joins a node, its group and the judgement; the frame does the rest."""
    conclude(judge(node.promised, node.facts, node.group))
