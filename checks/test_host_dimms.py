"""A DIMM that failed at boot or loses bits takes memory, speed and, in the end, the job."""

from __future__ import annotations

from preflight.check import Check
from preflight.facts import Facts, Node
from preflight.facts.machine_model import Edac
from preflight.facts.memory import is_short, logged, total_mib, uncorrected, wearing, whole
from preflight.facts.words import count, memory
from preflight.verdict import Conclude, Outcome, Verdict, fail, not_run, ok, unknown, warn

CHECK = Check("host.dimms", stage="facts", tier="prolog", requires=("reach.answer",), drains=True)

REPLACE = "drain, replace the DIMM, then recheck; see ras-mc-ctl --errors, ipmitool sel list"
MISSING = "compare dmidecode -t memory with a peer: a DIMM was disabled at boot, or sits badly"


def judge(facts: Facts, peers: tuple[int, float | None] = (0, None)) -> Verdict:
    """Lost data first, then memory that is not there; `peers`: how many alike, and their MiB."""
    seen = facts.machine.memory if facts.machine else None
    edac = facts.machine.edac if facts.machine else None
    if seen is None or edac is None:
        return unknown(
            "its memory or ECC counters could not be read", advice="mount /proc and /sys"
        )
    found = failing(facts, edac)
    if found is not None and found.outcome is Outcome.FAIL:
        return found
    alike, usual = peers
    if usual is not None and is_short(seen.total_mib, usual):
        said = f"{memory(seen.total_mib)} of memory; {memory(usual)} is usual in its group"
        conclude = fail if alike > 1 else warn
        return conclude(f"{said} ({count(alike, 'node')} with it)", advice=MISSING)
    if found is not None:
        return found
    if not edac.watched and usual is None:
        return not_run(f"no ECC counters here, no peers to compare {memory(seen.total_mib)} with")
    counted = f"{count(edac.watched, 'DIMM')} without a lasting error" if edac.watched else ""
    return ok(f"{memory(seen.total_mib)}; {counted or 'no driver counts its ECC errors'}")


def failing(facts: Facts, edac: Edac) -> Verdict | None:
    """What the counters say; where the log fails the node for it, it is that check's."""
    if edac.errors and logged(facts):
        return not_run(f"errors on {edac.errors[0].name}: host.hardware_errors judges them")
    if lost := uncorrected(edac):
        said = f"{count(lost[0].uncorrected, 'uncorrected error')} on {lost[0].name}, 0 expected"
        more = f" (and {count(len(lost) - 1, 'more DIMM')})" if len(lost) > 1 else ""
        return fail(said + more, advice=REPLACE, dimms=[one.name for one in lost])
    worn = wearing(edac, max(0.0, facts.time_s - facts.boot_s))
    return warn(worn, advice=REPLACE) if worn else None


def test_host_dimms(node: Node, conclude: Conclude) -> None:
    """Joins a node and the judgement; the frame does the rest."""
    usual = node.group.middle(total_mib)
    alike = 0 if usual is None else node.group.at_least(total_mib, whole(usual))
    conclude(judge(node.facts, (alike, usual)))
