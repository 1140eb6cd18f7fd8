"""Who computes on a node beside us slows every rank there, and all others wait for those."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.limits import limit
from preflight.facts.machine_model import Worker
from preflight.verdict import Conclude, Verdict, ok, unknown, warn

CHECK = Check("host.load", stage="facts", tier="prolog", requires=("reach.answer",))


def judge(facts: Facts) -> Verdict:
    """The CPU time of processes that are none of ours, over a fifth of a second."""
    load = facts.machine.load if facts.machine else None
    if load is None:
        return unknown("who computes here could not be seen", advice="mount /proc there")
    online = facts.machine.stack.cpus_online if facts.machine and facts.machine.stack else 0
    cpus = max(online, load.cpus_allowed, 1)
    most = max(limit("foreign_cpus_least"), cpus * limit("foreign_cpus_percent") / 100)
    seen = f"others' processes use {load.foreign_cpus:.1f} of {cpus} CPUs"
    if round(load.foreign_cpus, 1) > most:
        who = ", ".join(words(one) for one in load.busiest)
        pids = " ".join(str(one.pid) for one in load.busiest)
        return warn(
            f"{seen}, at most {most:g} expected: {who}",
            advice=f"see ps -fp {pids.replace(' ', ',')}; ask their owners, or wait for them",
            load_1min=load.one_minute,
        )
    return ok(seen, load_1min=load.one_minute)


def words(one: Worker) -> str:
    """As in: pid 4242 (python, user alice, 12.0 CPUs)."""
    return f"pid {one.pid} ({one.name}, user {one.user}, {one.cpus:.1f} CPUs)"


def test_host_load(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts))
