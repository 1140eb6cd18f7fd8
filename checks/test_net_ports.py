"""The job's rendezvous port is free on the master, and the nodes reach it and each other."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Net, Node, Ports
from preflight.facts.master_blame import master_fault
from preflight.facts.master_port import taken, unfit
from preflight.facts.port_blame import Fault, data_fault, own_trouble, untold
from preflight.facts.wiring import natural
from preflight.facts.words import count
from preflight.verdict import Conclude, Outcome, Verdict, fail, ok, unknown

CHECK = Check("net.ports", stage="net", tier="quick", requires=("reach.answer",))


def judge(name: str, net: Net) -> Verdict:
    """The master's own port first, then who reaches whom; the culprit is named, not the victim."""
    if net.own is None:
        return unknown(
            f"it gave no answer to the port stage: {net.trouble}",
            advice="run again; if it stays, look at this node's load and its Python",
        )
    if net.is_master and net.own.master is None:
        return unknown("the master did not try its port", advice="run again")
    held = None
    if net.own.master is not None and not net.own.master.bound:
        held = taken(net.own.master, net.master_port_origin)
        if held.outcome is not Outcome.OK:
            return held
    fault = master_fault(name, net) or data_fault(name, net)
    fault = fault or own_trouble(name, net)
    if fault is not None:
        return _condemn(name, fault)
    if dead := untold(net):
        said = f"cannot reach {dead}, whose port stage gave no report"
        return unknown(said, advice=f"mend {dead}, then run again", cause=said, blame=dead)
    bad = unfit(net.own.master, net.master_port_origin) if net.own.master else None
    return held or bad or _sound(net, net.own)


def _condemn(name: str, fault: Fault) -> Verdict:
    if not fault.blame:
        return unknown(fault.sentence, advice=fault.advice)
    blame = "" if fault.blame == name else fault.blame
    return fail(
        fault.sentence, advice=fault.advice, cause=fault.cause, blame=blame, blocks=not blame
    )


def _sound(net: Net, own: Ports) -> Verdict:
    at_master = [one for one in own.attempts if one.kind == "master"]
    partners = {one.target for one in own.attempts if one.kind == "data" and one.result == "ok"}
    if own.master is not None:
        reached = sum(attempt.result == "ok" for _, attempt in net.others_to_master)
        said = f"port {own.master.port} ({net.master_port_origin}) is free"
        said += f", reached by {count(reached, 'other node')}" if reached else ""
    elif at_master:
        said = f"reaches {net.master}:{at_master[0].port}"
    else:
        said = f"the port of {net.master} was not open to try"
    said += f"; random ports of {', '.join(sorted(partners, key=natural))} too" if partners else ""
    return ok(said, ms=[round(one.ms, 2) for one in own.attempts])


def test_net_ports(node: Node, conclude: Conclude) -> None:
    """Joins a node, the port stage and the judgement; the frame does the rest."""
    conclude(judge(node.name, node.net))
