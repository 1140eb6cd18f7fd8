"""Nothing of an earlier job keeps memory, a port or a GPU from the next one."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.stale import GRANT, Stale, find_stale
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, fail, ok, unknown, warn

CHECK = Check(
    "host.stale_processes", stage="facts", tier="prolog", requires=("reach.answer",), user=True
)


def judge(facts: Facts) -> Verdict:
    """Tell what was left behind, the grave first; what could not be seen is said, not passed."""
    if facts.processes is None:
        return unknown("its processes could not be read", advice=f"mount /proc; {GRANT}")
    found = find_stale(facts.processes, facts.gpus or ())
    seen = count(facts.processes.seen, "process", "processes")
    hidden = facts.processes.unreadable
    if not found:
        return ok(f"nothing stale among {seen}", unreadable=hidden)
    worst = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    evidence = [stale.sentence for stale in found]
    if worst.grant:
        return unknown(
            worst.sentence + more, advice=worst.advice, grant=worst.grant, findings=evidence
        )
    conclude = fail if worst.grave else warn
    return conclude(
        worst.sentence + more,
        advice=worst.advice,
        cause=cause(found),
        findings=evidence,
        pids=[one.pid for stale in found for one in stale.culprits],
    )


def cause(found: list[Stale]) -> str:
    """The single culprit, or the one that listens: `net.ports` names the same one."""
    culprits = {one.pid: one for stale in found if stale.grave for one in stale.culprits}
    listeners = [pid for pid, one in culprits.items() if one.listens]
    single = list(culprits) if len(culprits) == 1 else listeners
    return f"pid {single[0]}" if len(single) == 1 else ""


def test_host_stale_processes(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts))
