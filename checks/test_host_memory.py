"""Memory that others hold, or that swaps, is missing to the ranks: the kernel kills one of them."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.limits import limit
from preflight.facts.memory import available_mib, held_by, short, strained
from preflight.facts.words import memory
from preflight.verdict import Conclude, Verdict, fail, ok, unknown, warn

CHECK = Check("host.memory", stage="facts", tier="prolog", requires=("reach.answer",))

FREE = "see ps aux --sort=-rss, ls -l /dev/shm and slabtop; end what nobody needs, or reboot"


def judge(facts: Facts, usual_mib: float | None = None) -> Verdict:
    """What is left of it, by peers where there are some; then whether it swaps or stalls."""
    seen = facts.machine.memory if facts.machine else None
    if seen is None:
        return unknown("its memory could not be read", advice="mount /proc there")
    left = f"{memory(seen.available_mib)} of {memory(seen.total_mib)} available"
    percent = 100 * seen.available_mib / max(1, seen.total_mib)
    holder, cause = held_by(seen)
    least = limit("memory_left_percent")
    if percent < least:
        said = f"{left}{holder}; at least {least:g} % expected"
        return fail(said, advice=FREE, cause=cause)
    if scarce := short(seen, usual_mib):
        return warn(f"{left}{holder}; {scarce}", advice=FREE, cause=cause)
    if trouble := strained(seen):
        return warn(f"{trouble}; {left}", advice=FREE)
    return ok(left, swap_used_mib=seen.swap_used_mib)


def test_host_memory(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts, node.group.middle(available_mib)))
