"""Every active RDMA port runs at full rate, with the frames of its peers."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Group, Node
from preflight.facts.oddities import conclude_oddities
from preflight.facts.rdma import ports_of
from preflight.facts.slow_ports import odd_frames, slow_ports
from preflight.facts.words import count
from preflight.fleet.model import Promise
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown

CHECK = Check("ib.rate", stage="facts", tier="prolog", requires=("reach.answer",), drains=True)


def judge(promised: Promise, facts: Facts, group: Group) -> Verdict:
    """Hold rate, lanes, MTU and error correction against promise, group and own peers."""
    active = [port for port in ports_of(facts) if port.active]
    if not active:
        return not_run("no active RDMA port here")
    odd = conclude_oddities([*slow_ports(promised, facts, group), *odd_frames(facts, group)])
    if odd is not None:
        return odd
    mute = [port.name for port in active if port.gbits is None]
    if mute:
        said = f"the rate of {', '.join(mute)} could not be read"
        return unknown(said, advice="look at rate in /sys/class/infiniband/*/ports")
    rates = sorted({port.gbits or 0.0 for port in active}, reverse=True)
    spelled = ", ".join(f"{rate:g}" for rate in rates)
    each = {port.name: port.port.rate for port in active}
    return ok(f"{count(len(active), 'port')} at {spelled} Gb/s", rates=each)


def test_ib_rate(node: Node, conclude: Conclude) -> None:
    """Joins a node, its group and the judgement; the frame does the rest."""
    conclude(judge(node.promised, node.facts, node.group))
