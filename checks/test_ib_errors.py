"""No RDMA port loses bits, flaps or resends more than a sound link does."""

from __future__ import annotations

from msgspec.structs import replace

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.oddities import conclude_oddities
from preflight.facts.one_link import counted_cause
from preflight.facts.port_errors import RULES, port_errors, undated
from preflight.facts.rdma import ports_of
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown

CHECK = Check("ib.errors", stage="facts", tier="prolog", requires=("reach.answer",))


def judge(facts: Facts) -> Verdict:
    """Hold what moved between two looks, and the rates since boot, against their limits."""
    ports = [port for port in ports_of(facts) if port.active or not port.state]
    if not ports:
        return not_run("no active RDMA port here")
    odd = conclude_oddities(port_errors(facts))
    if odd is not None:
        return replace(odd, cause=counted_cause(facts))
    mute = [port.name for port in ports if port.port.counters is None]
    if mute:
        return unknown(
            f"{', '.join(mute)} would not tell any error counter",
            advice="look at counters and hw_counters in /sys/class/infiniband/*/ports; "
            "virtual functions have none: ask their host",
        )
    if old := undated(facts):
        return unknown(
            f"{', '.join(old)}: a total, and nothing says since when",
            advice="take a second reading after a known time, or ask the live node",
        )
    read = [port.port.counters.read for port in ports if port.port.counters]
    totals = {
        f"{port.name} {one.name}": one.value
        for port in ports
        for one in (port.port.counters.nonzero if port.port.counters else ())
    }
    few = sum(one.rpartition(" ")[2] in RULES for one in totals)
    more = [f"{few} too few to matter"] * bool(few)
    more += [f"{len(totals) - few} that no limit names"] * (len(totals) > few)
    rest = f", but for {' and '.join(more)}" if more else ""
    said = f"{sum(read)} error counters of {count(len(ports), 'port')} at rest{rest}"
    return ok(said, totals=totals)


def test_ib_errors(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts))
