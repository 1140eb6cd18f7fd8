"""Processes that slow or block the next job: leftovers of earlier jobs, other users' load."""

from __future__ import annotations

from preflight.check import Check
from preflight.core.text import count, first_finding
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Node
from preflight.facts.gpu_users import GRANT, Stale, find_stale
from preflight.facts.machine import Worker
from preflight.verdict import Conclude, Verdict, fail, ok, unknown, warn

_ANSWER = ("reach.answer",)
CHECKS = (
    Check("host.stale_processes", stage="facts", tier="prolog", requires=_ANSWER, user=True),
    Check("host.load", stage="facts", tier="prolog", requires=_ANSWER),
)


def judge_stale_processes(facts: Facts, limit: Thresholds) -> Verdict:
    """Report leftover processes, the gravest first; `unreadable` counts those that are hidden."""
    if facts.processes is None:
        return unknown("its processes could not be read", advice=f"mount /proc; {GRANT}")
    leftovers = find_stale(facts.processes, facts.gpus or (), limit)
    processes = count(facts.processes.seen, "process", "processes")
    hidden = facts.processes.unreadable
    if not leftovers:
        return ok(f"nothing stale among {processes}", unreadable=hidden)
    worst, evidence = leftovers[0], [stale.sentence for stale in leftovers]
    sentence = first_finding(evidence)
    if worst.grant:
        return unknown(sentence, advice=worst.advice, grant=worst.grant, findings=evidence)
    conclude, cause = fail if worst.grave else warn, common_cause(leftovers)
    pids = [culprit.pid for stale in leftovers for culprit in stale.culprits]
    return conclude(sentence, advice=worst.advice, cause=cause, findings=evidence, pids=pids)


def common_cause(leftovers: list[Stale]) -> str:
    """The single culprit, or the one that listens: `net.ports` names the same process."""
    culprits = [culprit for stale in leftovers if stale.grave for culprit in stale.culprits]
    listeners = {culprit.pid for culprit in culprits if culprit.listens}
    every = {culprit.pid for culprit in culprits}
    pids = every if len(every) == 1 else listeners
    return f"pid {pids.pop()}" if len(pids) == 1 else ""


def test_host_stale_processes(node: Node, conclude: Conclude) -> None:
    """Nothing of an earlier job keeps memory, a port or a GPU from the next one."""
    conclude(judge_stale_processes(node.facts, node.limit))


def judge_load(facts: Facts, limit: Thresholds) -> Verdict:
    """Judge the CPU time of other users' processes over a fifth of a second."""
    load = facts.machine.load if facts.machine else None
    if load is None:
        sentence = "the processes that use the CPUs could not be read"
        return unknown(sentence, advice="mount /proc there")
    online = facts.machine.stack.cpus_online if facts.machine and facts.machine.stack else 0
    cpus = max(online, load.cpus_allowed, 1)
    most = max(limit("foreign_cpus_least"), cpus * limit("foreign_cpus_percent") / 100)
    usage = f"others' processes use {load.foreign_cpus:.1f} of {cpus} CPUs"
    if round(load.foreign_cpus, 1) > most:
        workers = ", ".join(worker_words(worker) for worker in load.busiest)
        pids = ",".join(str(worker.pid) for worker in load.busiest)
        advice = f"see ps -fp {pids}; ask their owners, or wait for them"
        sentence = f"{usage}, at most {most:g} expected: {workers}"
        return warn(sentence, advice=advice, load_1min=load.one_minute)
    return ok(usage, load_1min=load.one_minute)


def worker_words(worker: Worker) -> str:
    """As in: pid 4242 (python, user alice, 12.0 CPUs)."""
    return f"pid {worker.pid} ({worker.name}, user {worker.user}, {worker.cpus:.1f} CPUs)"


def test_host_load(node: Node, conclude: Conclude) -> None:
    """Other load on a node slows every rank there, and all other ranks wait for those."""
    conclude(judge_load(node.facts, node.limit))
