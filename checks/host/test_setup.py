"""Cores that clock down between messages make every small collective wait for them."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Majority, Node
from preflight.facts.machine_model import Governor
from preflight.facts.peers import decided, others
from preflight.facts.words import count
from preflight.verdict import Conclude, Verdict, not_run, ok, unknown, warn

CHECK = Check("host.governor", stage="facts", tier="prolog", requires=("reach.answer",))

STEADY = "performance"
ADVICE = "cpupower frequency-set -g performance, and make it last (tuned-adm profile hpc-compute)"
BIOS = "compare the power settings of its BIOS (OS control of P-states) with a node that has them"


def judge(facts: Facts, usual: Majority[tuple[str, ...]] | None = None) -> Verdict:
    """Every CPU under the governor that keeps its clock up; a VM has none to choose."""
    governors = facts.machine.governors if facts.machine else None
    if governors is None:
        return unknown("CPU frequency governors could not be read", advice="mount /sys there")
    alike = decided(usual)
    if not governors and alike is not None and alike.value:
        said = f"no CPU frequency governor here; {others(alike, ', '.join(alike.value))}"
        return warn(said, advice=BIOS)
    if not governors:
        return not_run("its firmware or hypervisor steers CPU frequencies, no governor does")
    slow = [one for one in governors if one.name != STEADY]
    if not slow:
        return ok(f"{count(sum(one.cpus for one in governors), 'CPU')} under {STEADY}")
    seen = ", ".join(words(one) for one in slow)
    of = sum(one.cpus for one in governors)
    expected = f"{STEADY} is expected"
    if alike is not None and alike.value == (STEADY,):
        expected = others(alike, STEADY)
    return warn(
        f"{seen} of {of}; {expected}", advice=ADVICE, governors=[words(g) for g in governors]
    )


def words(one: Governor) -> str:
    """192 CPUs under powersave (intel_pstate)."""
    return f"{count(one.cpus, 'CPU')} under {one.name or '?'} ({one.driver or 'driver unknown'})"


def names_of(facts: Facts) -> tuple[str, ...] | None:
    """For the vote of a group."""
    if facts.machine is None or facts.machine.governors is None:
        return None
    return tuple(sorted({one.name for one in facts.machine.governors}))


def test_host_governor(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    conclude(judge(node.facts, node.group.majority(names_of)))
