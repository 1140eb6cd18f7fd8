"""The job's rendezvous port, and the range from which the kernel takes ports.

That port alone proves little: a firewall between the master and one other node looks there as if
the other node were cut off from all. So the attempts at data ports count too.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.check import Check
from preflight.checks.deviations import Deviation, conclude_deviations
from preflight.checks.net.port_blame import Fault, find_fault, master_without_report
from preflight.core.text import count, natural, whole
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Net, Node, Ports
from preflight.facts.gpu_users import kill_command, process
from preflight.facts.model import MasterPort
from preflight.facts.node_network import Network
from preflight.verdict import Conclude, Outcome, Verdict, fail, not_run, ok, unknown, warn

CHECKS = (
    Check("net.ports", stage="net", tier="quick", requires=("reach.answer",)),
    Check("net.ephemeral_ports", stage="facts", tier="prolog", requires=("reach.answer",)),
)


def taken_verdict(master: MasterPort, origin: str) -> Verdict:
    """Explain by its holder a port that could not be bound."""
    port = f"port {master.port} ({origin})"
    holder = master.holder
    if holder is not None and holder.ours:
        return ok(f"{port} is held by this run's own store, {process(holder)}")
    if holder is not None:
        end = "ask root to find it: ss -ltnp"
        if holder.pid:
            end = f"end it: {kill_command([holder.pid])}"
        return fail(
            f"{port} is taken by {process(holder)}",
            advice=f"{end}; or choose another --master-port",
            cause=f"pid {holder.pid}" if holder.pid else "",
            blocks=False,
            pid=holder.pid,
        )
    if master.lingering:
        remark = f"{port} still has {count(master.lingering, 'connection')} of an ended job closing"
        advice = "wait a minute, or choose another --master-port"
        return warn(f"{remark}; the kernel keeps them a minute", advice=advice)
    sentence, advice = f"{port} cannot be bound: {master.error}", "choose another --master-port"
    return fail(sentence, advice=advice, blocks=False)


def not_free_again(master: MasterPort, origin: str) -> Verdict | None:
    """What is wrong with a port that was free at first, and then not free again."""
    if master.free_again is not False:
        return None
    sentence = f"port {master.port} ({origin}) was free, but not again after our listener had left"
    advice = "find the process that took it: ss -tanp; or choose another --master-port"
    return fail(sentence, advice=advice, blocks=False)


def judge_ports(name: str, net: Net) -> Verdict:
    """First the master's port, then which node reaches which; name the culprit, not the victim."""
    if net.own is None:
        return unknown(
            f"it gave no answer to the port stage: {net.trouble}",
            advice="run again; if it stays, look at this node's load and its Python",
        )
    if net.is_master and net.own.master is None:
        return unknown("the master did not try its port", advice="run again")
    taken = None
    if net.own.master is not None and not net.own.master.bound:
        taken = taken_verdict(net.own.master, net.master_port_origin)
        if taken.outcome is not Outcome.OK:
            return taken
    if fault := find_fault(name, net):
        return _fault_verdict(name, fault)
    if dead := master_without_report(net):
        sentence = f"cannot reach {dead}, whose port stage gave no report"
        advice = f"repair {dead}, then run again"
        return unknown(sentence, advice=advice, cause=sentence, blame=dead)
    bad = not_free_again(net.own.master, net.master_port_origin) if net.own.master else None
    return taken or bad or _ports_ok(net, net.own)


def _fault_verdict(name: str, fault: Fault) -> Verdict:
    if not fault.blame:
        return unknown(fault.sentence, advice=fault.advice)
    blame = "" if fault.blame == name else fault.blame
    return fail(
        fault.sentence, advice=fault.advice, cause=fault.cause, blame=blame, blocks=not blame
    )


def _ports_ok(net: Net, ports: Ports) -> Verdict:
    at_master = [attempt for attempt in ports.attempts if attempt.kind == "master"]
    at_data_ports = [attempt for attempt in ports.attempts if attempt.kind == "data"]
    partners = {attempt.target for attempt in at_data_ports if attempt.result == "ok"}
    if ports.master is not None:
        arrivals = sum(attempt.result == "ok" for _, attempt in net.others_to_master)
        summary = f"port {ports.master.port} ({net.master_port_origin}) is free"
        summary += f", reached by {count(arrivals, 'other node')}" if arrivals else ""
    elif at_master:
        summary = f"reaches {net.master}:{at_master[0].port}"
    else:
        summary = f"the port of {net.master} was not open to try"
    if partners:
        summary += f"; random ports of {', '.join(sorted(partners, key=natural))} too"
    return ok(summary, ms=[round(attempt.ms, 2) for attempt in ports.attempts])


def test_net_ports(node: Node, conclude: Conclude) -> None:
    """The job's rendezvous port is free on the master, and the nodes reach it and each other."""
    conclude(judge_ports(node.name, node.net))


def risky_ports(
    network: Network, master_port: int | None, origin: str, limit: Thresholds
) -> Iterator[Deviation]:
    """What is wrong with the range. `master_port`: on the master alone."""
    if network.ephemeral is None:
        return
    low, high = network.ephemeral
    least = int(limit("ephemeral_ports"))
    free = max(0, high - low + 1)
    if free < least:
        sentence = f"{free} ports for outgoing connections ({low}-{high}), {least} are the least"
        advice = "sysctl -w net.ipv4.ip_local_port_range='32768 60999'; keep it so"
        yield Deviation(f"{sentence} for a large job", advice, grave=False)
    if master_port is None or not low <= master_port <= high:
        return
    if is_reserved(master_port, network.reserved):
        return
    yield Deviation(
        f"port {master_port} ({origin}) is inside the ephemeral range {low}-{high}: "
        "any outgoing connection may take it before the job does",
        f"choose a --master-port below {low}, such as 29500, or reserve it: "
        f"sysctl -w net.ipv4.ip_local_reserved_ports={master_port}",
        grave=False,
    )


def is_reserved(port: int, reserved: str) -> bool:
    """Whether a port is in the kernel's list, such as "29500-29510,30000"."""
    for part in reserved.split(","):
        first, last = (whole(end) for end in (*part.strip().split("-", 1), "")[:2])
        if first is not None and first <= port <= (first if last is None else last):
            return True
    return False


def judge_ephemeral_ports(
    facts: Facts, master_port: int | None, origin: str, limit: Thresholds
) -> Verdict:
    """Compare the range with what a job needs and, on the master, with its port."""
    network = facts.network
    if network is None and not any(line.startswith("network") for line in facts.problems):
        return not_run("no port range reported")
    if network is None or network.ephemeral is None:
        return unknown(
            "the range of ports for outgoing connections could not be read",
            advice="look at /proc/sys/net/ipv4/ip_local_port_range",
        )
    if odd := conclude_deviations(risky_ports(network, master_port, origin, limit)):
        return odd
    low, high = network.ephemeral
    line = f"{high - low + 1} ports for outgoing connections ({low}-{high})"
    if master_port is not None:
        line += f"; {master_port} ({origin}) is safe from them"
    return ok(line, low=low, high=high, reserved=network.reserved)


def test_net_ephemeral_ports(node: Node, conclude: Conclude) -> None:
    """The kernel has enough ports for outgoing connections, and the master's is not among them."""
    port = node.job.master_port if node.net.is_master else None
    conclude(judge_ephemeral_ports(node.facts, port, node.job.master_port_origin, node.limit))
