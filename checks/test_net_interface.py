"""What the job's variables select on a node is there, is up, and leads to the other nodes."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read like its documentation

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.choices import gloo_choice, hca_choice, socket_choice
from preflight.facts.down_ports import down_ports
from preflight.facts.environ.conf import settings as conf_settings
from preflight.facts.oddities import conclude_oddities
from preflight.facts.selected import nccl_interfaces, nccl_ports
from preflight.facts.words import count
from preflight.fleet.model import Promise
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown

CHECK = Check("net.interface", stage="facts", tier="prolog", requires=("reach.answer",))


def judge(
    promised: Promise,
    facts: Facts,
    environ: Mapping[str, str] | None,
    group: Group,
    *,
    alone: bool,
) -> Verdict:
    """Resolve NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and NCCL_IB_HCA as their readers do.

    NCCL also reads them from its files (nccl.conf), after the environment.
    """
    network, job = facts.network, environ or {}
    env = {**conf_settings(facts.nccl_conf or ()), **job}
    if network is None or network.interfaces is None:
        if environ is None and not any(said.startswith("network") for said in facts.problems):
            return not_run("no interfaces told, no job environment known")
        return unknown("the interfaces could not be read", advice="look at ip address there")
    if alone and not job:
        return not_run("one node alone, and no job environment known")
    odd = list(hca_choice(facts, env, condemned=bool(down_ports(promised, facts, group))))
    if not alone:  # the job has other nodes to reach
        odd += socket_choice(facts, env, group, sure=environ is not None)
        odd += gloo_choice(facts, env, group)
    if (found := conclude_oddities(odd)) is not None:
        return found
    ifname = env.get("NCCL_SOCKET_IFNAME", "")
    sockets = nccl_interfaces(facts, ifname, env.get("NCCL_SOCKET_FAMILY", ""))
    first = f"{sockets[0].name} {sockets[0].addresses[0]}" if sockets else "no interface"
    given = f" (NCCL_SOCKET_IFNAME={ifname})" if ifname else ""
    said = f"NCCL's sockets: {first}{given}"
    active = [p.name for p in nccl_ports(facts, env.get("NCCL_IB_HCA", "")) if p.active]
    if active:
        said += f"; RDMA: {count(len(active), 'port')}"
    return ok(said, sockets=[one.name for one in sockets], ports=active)


def test_net_interface(node: Node, conclude: Conclude) -> None:
    """Joins a node, the job's environment there and the judgement; the frame does the rest."""
    alone = node.net.nodes == 1
    conclude(judge(node.promised, node.facts, node.environ, node.group, alone=alone))
