"""The kernel has ports enough to give away, and the master's is not among them."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.oddities import conclude_oddities
from preflight.facts.port_range import risky_ports
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown

CHECK = Check("net.ephemeral_ports", stage="facts", tier="prolog", requires=("reach.answer",))


def judge(facts: Facts, master_port: int | None, origin: str) -> Verdict:
    """Hold the range against what a job needs, and on the master against its port."""
    network = facts.network
    if network is None and not any(said.startswith("network") for said in facts.problems):
        return not_run("no port range told")
    if network is None or network.ephemeral is None:
        return unknown(
            "the range of ports for outgoing connections could not be read",
            advice="look at /proc/sys/net/ipv4/ip_local_port_range",
        )
    odd = conclude_oddities(risky_ports(network, master_port, origin))
    if odd is not None:
        return odd
    low, high = network.ephemeral
    said = f"{high - low + 1} ports for outgoing connections ({low}-{high})"
    if master_port is not None:
        said += f"; {master_port} ({origin}) is safe from them"
    return ok(said, low=low, high=high, reserved=network.reserved)


def test_net_ephemeral_ports(node: Node, conclude: Conclude) -> None:
    """Joins a node, the master's port and the judgement; the frame does the rest."""
    port = node.job.master_port if node.net.is_master else None
    conclude(judge(node.facts, port, node.job.master_port_origin))
