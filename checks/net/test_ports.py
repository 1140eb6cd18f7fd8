"""The job's rendezvous port, and the range from which the kernel takes ports.

That port alone proves little: a firewall between the master and one other node looks there as if
the other node were cut off from all. So the attempts at data ports count too.

A healthy node must never fail for its neighbour's firewall, so every conclusion rests on
other connections. Most nodes fail at h1: h1 is at fault. Only h2 fails at h1: h2 is at fault, or
the path, if h2 reaches most other nodes. Two nodes alone prove nothing: the pair h1-h2 is blamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from preflight.check import Check
from preflight.checks.deviations import Deviation, conclude_deviations
from preflight.core.text import count, natural, whole
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Net, Node, Ports
from preflight.facts.gpu_users import kill_command, name_process
from preflight.facts.model import Attempt, MasterPort
from preflight.facts.node_network import Network
from preflight.verdict import Conclude, Outcome, Verdict, fail, not_run, ok, unknown, warn

CHECKS = (
    Check("net.ports", stage="net", tier="quick", requires=("reach.answer",)),
    Check("net.ephemeral_ports", stage="facts", tier="prolog", requires=("reach.answer",)),
)


def bind_failure_verdict(master: MasterPort, origin: str) -> Verdict:
    """Explain by its holder a port that could not be bound."""
    port = f"port {master.port} ({origin})"
    holder = master.holder
    if holder is not None and holder.ours:
        return ok(f"{port} is held by this run's own store, {name_process(holder)}")
    if holder is not None:
        end_advice = "ask root to find it: ss -ltnp"
        if holder.pid:
            end_advice = f"end it: {kill_command([holder.pid])}"
        return fail(
            f"{port} is taken by {name_process(holder)}",
            advice=f"{end_advice}; or choose another --master-port",
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


def reuse_failure(master: MasterPort, origin: str) -> Verdict | None:
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
    bind_verdict = None
    if net.own.master is not None and not net.own.master.bound:
        bind_verdict = bind_failure_verdict(net.own.master, net.master_port_origin)
        if bind_verdict.outcome is not Outcome.OK:
            return bind_verdict
    if fault := find_fault(name, net):
        return _fault_verdict(name, fault)
    if dead_master := master_without_report(net):
        sentence = f"cannot reach {dead_master}, whose port stage gave no report"
        advice = f"repair {dead_master}, then run again"
        return unknown(sentence, advice=advice, cause=sentence, blame=dead_master)
    reuse = reuse_failure(net.own.master, net.master_port_origin) if net.own.master else None
    return bind_verdict or reuse or _ports_ok(net, net.own)


def _fault_verdict(name: str, fault: Fault) -> Verdict:
    sentence, advice, cause = fault.sentence, fault.advice, fault.cause
    if not fault.blame:
        return unknown(sentence, advice=advice)
    blame = "" if fault.blame == name else fault.blame
    return fail(sentence, advice=advice, cause=cause, blame=blame, blocks=not blame)


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
    floor = int(limit("ephemeral_ports"))
    free = max(0, high - low + 1)
    if free < floor:
        sentence = f"{free} ports for outgoing connections ({low}-{high}), {floor} are the least"
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


_ByPeer = dict[str, list[Attempt]]
"""Failed attempts by peer; an empty list for a peer with none."""

_WORDS: Final[Mapping[str, str]] = {
    "refused": "refused: a firewall rejects it, or the address leads to another host",
    "timeout": "timed out: a firewall drops it, or there is no way back",
    "unreachable": "no route, or a firewall rejects it",
    "reset": "cut off by something on the way",
    "wrong_answer": "answered by something that is not this run",
}
"""The meaning of a failed connection to a listener that surely existed."""

_OPEN_PORTS: Final = (
    "let the nodes reach each other on all TCP ports: look at nftables, security groups"
)
_SEVERAL: Final = 2
"""A single failure is between two nodes, and may be the fault of either."""
_UNRESOLVED: Final = re.compile(r"[Nn]ame or service|name resolution|hostname|[Nn]ame does not")
"""Error texts of C libraries for a name without an address: the node's fault, not ours."""


class Fault(Struct, frozen=True):
    """A failed connection explained. `blame` is a node, "pair a-b", or "" if none is known."""

    blame: str
    sentence: str
    advice: str = _OPEN_PORTS

    @property
    def cause(self) -> str:
        """The same for all nodes with the same culprit, so that they are one finding."""
        return f"ports of {self.blame}"


def find_fault(name: str, net: Net) -> Fault | None:
    """What is at fault for the failed connections of node `name`; None if nothing is.

    On h2, if h2 and h3 fail at the master h1 and h4 does not, the fault is Fault("h1",
    "2 of 3 other nodes cannot reach h1:29500 (no route, or a firewall rejects it)").
    """
    return (
        _master_port_fault(name, net)
        or _node_fault(name, net)
        or _partner_fault(name, net)
        or _own_fault(name, net)
    )


def master_without_report(net: Net) -> str:
    """The master, if this node cannot reach it and the master's port stage died; else ""."""
    for attempt in net.own.attempts if net.own is not None else ():
        if attempt.kind == "master" and attempt.result not in ("ok", "error"):
            return attempt.target if _gave_no_report(attempt.target, net) else ""
    return ""


def _master_port_fault(name: str, net: Net) -> Fault | None:
    """Why this node cannot reach the master port, or, on the master, why others cannot."""
    attempts = _evidence(net, net.others_to_master)
    failed = {source: attempt for source, attempt in attempts if attempt.result != "ok"}
    if not failed:
        return None
    port = next(iter(failed.values())).port
    failures = _failure_words(failed.values())
    stranger_answers = any(attempt.result == "wrong_answer" for attempt in failed.values())
    most_fail = len(failed) >= _SEVERAL and 2 * len(failed) > len(attempts)
    if stranger_answers or most_fail:
        nodes = f"{len(failed)} of {count(len(attempts), 'other node')}"
        return Fault(net.master, f"{nodes} cannot reach {net.master}:{port} ({failures})")
    if len(attempts) == 1:
        return _pair_fault(next(iter(failed)), net.master, port, failures)
    others = f"{len(attempts) - len(failed)} of {len(attempts)} other nodes can"
    if name != net.master and name not in failed:
        return None
    visible = failed if name == net.master else {name: failed[name]}
    path = _path_fault(name, net, visible, others)
    if path is not None or name == net.master:
        return path
    sentence = f"cannot reach {net.master}:{failed[name].port} ({_failure_words([failed[name]])})"
    return Fault(name, f"{sentence}; {others}", f"on {name}: {_OPEN_PORTS}")


def _evidence(net: Net, attempts: Iterable[tuple[str, Attempt]]) -> list[tuple[str, Attempt]]:
    """The attempts that show something of the path between two nodes.

    An attempt that its own node could not make shows nothing, nor does a failure at a node whose
    port stage died: its listeners died with it.
    """
    valid = [(source, attempt) for source, attempt in attempts if attempt.result != "error"]
    failed_at = {attempt.target for _, attempt in valid if attempt.result != "ok"}
    dead = {target for target in failed_at if _gave_no_report(target, net)}
    return [row for row in valid if row[1].result == "ok" or row[1].target not in dead]


def _gave_no_report(target: str, net: Net) -> bool:
    """Whether a node that others tried made no attempt itself."""
    if not net.others_to or (net.is_master and target == net.master):
        return False
    return not any(source == target for rows in net.others_to.values() for source, _ in rows)


def _failure_words(attempts: Iterable[Attempt]) -> str:
    """The kinds of failure in words, each once."""
    failures = [attempt.result for attempt in attempts if attempt.result != "ok"]
    return "; ".join(dict.fromkeys(_WORDS[result] for result in failures))


def _pair_fault(
    source: str, target: str, port: int, failures: str, remark: str = "either end may be at fault"
) -> Fault:
    """Blame the path between two nodes, and neither of the two."""
    first, second = sorted((source, target), key=natural)
    sentence = f"{source} cannot reach {target}:{port} ({failures}); {remark}"
    return Fault(f"pair {first}-{second}", sentence, f"on {first} and {second}: {_OPEN_PORTS}")


def _path_fault(name: str, net: Net, failed: Mapping[str, Attempt], others: str) -> Fault | None:
    """Only the path to the master is cut: both ends report it, in the same words.

    `failed`: node → its failed attempt at the master port.
    """
    outgoing = _data_attempts(failed, net)
    source = next((node for node in failed if _only_master_is_cut(node, net, outgoing[node])), None)
    if source is None:
        return None
    if node_fault := _node_fault(name, net):
        return node_fault
    port, how = failed[source].port, _failure_words([failed[source]])
    first, second = sorted((source, net.master), key=natural)
    return Fault(
        f"pair {first}-{second}",
        f"{source} cannot reach the master port {net.master}:{port} ({how}), so a job with both "
        f"would hang at its rendezvous; {others}, and {source} reaches other nodes",
        f"open the firewall between {first} and {second} for port {port} and all other TCP ports: "
        "look on both at nftables, security groups",
    )


def _data_attempts(sources: Iterable[str], net: Net) -> dict[str, list[tuple[str, Attempt]]]:
    """What each of these nodes tried at the others' data ports: (target, attempt).

    Only the master looks through the whole fleet, once; a node knows its own attempts.
    """
    if not net.is_master and net.own is not None:
        return {name: _own_data_attempts(name, net) for name in sources}
    by_source: dict[str, list[tuple[str, Attempt]]] = {source: [] for source in sources}
    for target, attempts in net.others_to.items():
        for source, attempt in _evidence(net, (row for row in attempts if row[0] in by_source)):
            if attempt.kind == "data":
                by_source[source].append((target, attempt))
    return by_source


def _own_data_attempts(name: str, net: Net) -> list[tuple[str, Attempt]]:
    """What this node tried at the others' data ports: (target, attempt)."""
    attempts = net.own.attempts if net.own is not None else ()
    evidence = _evidence(net, ((name, attempt) for attempt in attempts))
    return [(attempt.target, attempt) for _, attempt in evidence if attempt.kind == "data"]


def _only_master_is_cut(source: str, net: Net, outgoing: Sequence[tuple[str, Attempt]]) -> bool:
    """Whether this node reaches most others that it tried and only the master is out of its reach.

    A node that reaches the master's data ports, but not the master port, is itself at fault; so is
    a node that accepts no connection.
    """
    failures = _failures_by_peer(outgoing)
    if failures.pop(net.master, None) == []:
        return False
    reachable = sum(not attempts for attempts in failures.values())
    if 2 * reachable <= len(failures):
        return False
    to_source = (row for row in net.others_to.get(source, ()) if row[1].kind == "data")
    incoming = _failures_by_peer(_evidence(net, to_source))
    incoming.pop(net.master, None)
    return not incoming or not all(incoming.values())


def _failures_by_peer(attempts: Iterable[tuple[str, Attempt]]) -> _ByPeer:
    """Sort out what failed: [("h2", ok), ("h3", timeout)] becomes {"h2": [], "h3": [timeout]}."""
    failures: _ByPeer = {}
    for peer, attempt in attempts:
        failed = failures.setdefault(peer, [])
        if attempt.result != "ok":
            failed.append(attempt)
    return failures


def _node_fault(name: str, net: Net) -> Fault | None:
    """A node that no partner in the sweep can connect to, or that can connect to none."""
    incoming, outgoing = _data_failures(name, net)
    directions = ((incoming, "cannot connect to it"), (outgoing, "cannot be reached from it"))
    for failures, verb in directions:
        if len(failures) >= _SEVERAL and all(failures.values()):
            how = _failure_words(attempt for attempts in failures.values() for attempt in attempts)
            peers = ", ".join(sorted(failures, key=natural))
            sentence = f"{peers} {verb} on random ports ({how})"
            return Fault(name, sentence, f"on {name}: {_OPEN_PORTS}")
    return None


def _data_failures(name: str, net: Net) -> tuple[_ByPeer, _ByPeer]:
    """Failed attempts at data ports by peer: incoming to this node, and outgoing from it."""
    at_this_node = [row for row in _evidence(net, net.to_me) if row[1].kind == "data"]
    return _failures_by_peer(at_this_node), _failures_by_peer(_own_data_attempts(name, net))


def _partner_fault(name: str, net: Net) -> Fault | None:
    """Why this node cannot connect to the data ports of one of its partners in the sweep."""
    incoming, outgoing = _data_failures(name, net)
    for peer in sorted(outgoing, key=natural):
        attempts = outgoing[peer]
        if not attempts:
            continue
        port, how = attempts[0].port, _failure_words(attempts)
        if "ok" in _others_results(name, peer, net):
            return _pair_fault(name, peer, port, how, "others can reach it")
        if _peer_is_at_fault(peer, net, incoming, outgoing):
            sentence = f"{peer} cannot be reached on random ports ({how})"
            return Fault(peer, sentence, f"on {peer}: {_OPEN_PORTS}")
        return _pair_fault(name, peer, port, how)
    return None


def _others_results(name: str, peer: str, net: Net) -> set[str]:
    """How other nodes' attempts at a peer's data ports ended: with an "ok" its firewall is open."""
    others = [attempt for source, attempt in net.others_to.get(peer, ()) if source != name]
    return {attempt.result for attempt in others if attempt.kind == "data"}


def _peer_is_at_fault(peer: str, net: Net, incoming: _ByPeer, outgoing: _ByPeer) -> bool:
    """Whether a peer that is not reached is to blame.

    It is when it cannot reach the master either, or when we reach others and it reaches us, so that
    only its own firewall is left. If we are the master, its failure there is on the path in
    question: it counts only once others have failed to connect too.
    """
    reaches_master = {source: attempt.result == "ok" for source, attempt in net.others_to_master}
    cut_off = reaches_master.get(peer) is False and any(reaches_master.values())
    if cut_off and not net.is_master:
        return True
    if cut_off and _others_results(net.master, peer, net):
        return True
    we_reach_others = any(not attempts for other, attempts in outgoing.items() if other != peer)
    it_reaches_us = incoming.get(peer) == []
    return we_reach_others and it_reaches_us


def _own_fault(name: str, net: Net) -> Fault | None:
    """An attempt that this node could not make: its own limits, or a name it cannot resolve."""
    for attempt in net.own.attempts if net.own is not None else ():
        if attempt.result != "error":
            continue
        sentence = f"its own attempt at {attempt.target}:{attempt.port} failed: {attempt.error}"
        if _UNRESOLVED.search(attempt.error):
            advice = f"on {name}: make {attempt.target} resolvable (DNS, /etc/hosts)"
            return Fault(name, sentence, advice)
        advice = f"on {name}: look at the limit of open files and at memory, and run again"
        return Fault("", sentence, advice)
    return None
