"""Memory of the host that is missing, in use or failing."""

from __future__ import annotations

from typing import Final

from preflight.check import Check
from preflight.checks.host.test_file_systems import SHM_FULL
from preflight.checks.host.test_host_log import faults
from preflight.core.text import age, count, memory
from preflight.core.thresholds import Thresholds
from preflight.facts import Facts, Node
from preflight.facts.boards import among, gpu_models
from preflight.facts.machine import Edac, Memory
from preflight.verdict import Conclude, Outcome, Verdict, fail, not_run, ok, unknown, warn

CHECKS = (
    Check("host.memory", stage="facts", tier="prolog", requires=("reach.answer",)),
    Check("host.dimms", stage="facts", tier="prolog", requires=("reach.answer",), drains=True),
)


_DAY: Final = 86400


def total_mib(facts: Facts) -> float | None:
    """The memory of the machine, for the group's median."""
    ram = facts.machine.memory if facts.machine else None
    return None if ram is None else float(ram.total_mib)


def available_mib(facts: Facts) -> float | None:
    """The memory that is available, for the group's median."""
    ram = facts.machine.memory if facts.machine else None
    return None if ram is None else float(ram.available_mib)


def min_complete_mib(usual_mib: float, limit: Thresholds) -> float:
    """The least memory that a machine shows when no DIMM is missing: equal ones differ by less."""
    percent, gib = limit("memory_short_percent"), limit("memory_short_gib")
    return usual_mib - max(usual_mib * percent / 100, gib * 1024)


def main_holder(ram: Memory) -> tuple[str, str]:
    """Name what holds most of the used memory, and the cause that it shares with other checks."""
    used = max(1, ram.total_mib - ram.available_mib)
    if ram.shared_mib * 2 > used:
        # What fills /dev/shm is missing here as well: one cause, one finding.
        return f", {memory(ram.shared_mib)} are in shared memory", SHM_FULL
    if ram.huge_pages_mib * 2 > used:
        return f", {memory(ram.huge_pages_mib)} are reserved as huge pages", ""
    return "", ""


def shortage(ram: Memory, usual_mib: float | None, limit: Thresholds) -> str:
    """Say that too little is free, by the group's median where there is one; "" if not."""
    if usual_mib is not None:
        low = ram.available_mib < usual_mib * limit("memory_of_peers_percent") / 100
        return f"{memory(usual_mib)} is usual in its group" if low else ""
    min_percent = limit("memory_idle_percent")
    low = ram.available_mib < ram.total_mib * min_percent / 100
    return f"an idle node has over {min_percent:g} %" if low else ""


def pressure(ram: Memory, limit: Thresholds) -> str:
    """Say that the node stalls or swaps although some memory is left; "" if not."""
    most, most_swap_gib = limit("memory_stalled_percent"), limit("swap_used_gib")
    if ram.stalled_percent is not None and ram.stalled_percent > most:
        wait = f"something waited for memory in {ram.stalled_percent:.0f} % of the last 10 s"
        return f"{wait}, at most {most:g} % are usual"
    if ram.swap_used_mib > most_swap_gib * 1024:
        usual = f"at most {most_swap_gib:g} GiB is usual"
        return f"{memory(ram.swap_used_mib)} are swapped out, {usual}"
    return ""


def failing_dimm(edac: Edac, up_s: float, limit: Thresholds) -> str:
    """Name the DIMM whose corrected errors come faster than chance; "" if there is none."""
    most_per_day = limit("corrected_dimm_per_day")
    for dimm in sorted(edac.errors, key=lambda dimm: -dimm.corrected):
        counted_s = up_s if dimm.counted_s is None else dimm.counted_s
        # A burst within the first day counts as that day's.
        if dimm.corrected / max(1.0, counted_s / _DAY) > most_per_day:
            errors = f"{dimm.corrected} corrected errors on {dimm.name} in {age(counted_s)}"
            return f"{errors}; at most {most_per_day:g} a day are usual"
    return ""


def log_has_memory_fault(facts: Facts) -> bool:
    """Whether `host.hardware_errors` fails for memory: a process that was killed is no proof."""
    lines = facts.kernel_log.lines if facts.kernel_log is not None else ()
    return any(fault.part == "memory" and fault.grade == "fatal" for fault in faults(lines))


FREE = "see ps aux --sort=-rss, ls -l /dev/shm and slabtop; end what is not needed, or reboot"


def judge_memory(facts: Facts, usual_mib: float | None = None, *, limit: Thresholds) -> Verdict:
    """First the memory left, compared with peers if there are any; then swapping and stalls."""
    ram = facts.machine.memory if facts.machine else None
    if ram is None:
        return unknown("its memory could not be read", advice="mount /proc there")
    available = f"{memory(ram.available_mib)} of {memory(ram.total_mib)} available"
    percent = 100 * ram.available_mib / max(1, ram.total_mib)
    holder, cause = main_holder(ram)
    min_percent = limit("memory_left_percent")
    if percent < min_percent:
        sentence = f"{available}{holder}; at least {min_percent:g} % expected"
        return fail(sentence, advice=FREE, cause=cause)
    if short := shortage(ram, usual_mib, limit):
        return warn(f"{available}{holder}; {short}", advice=FREE, cause=cause)
    if stalls := pressure(ram, limit):
        return warn(f"{stalls}; {available}", advice=FREE)
    return ok(available, swap_used_mib=ram.swap_used_mib)


def test_host_memory(node: Node, conclude: Conclude) -> None:
    """Memory that others hold, or that swaps, is missing to the ranks: the kernel kills one of them."""  # noqa: E501  `preflight list-checks` prints it
    usual = node.group.median(among(available_mib, gpu_models(node.facts)))
    conclude(judge_memory(node.facts, usual, limit=node.limit))


REPLACE_DIMM = "drain, replace the DIMM, then recheck; see ras-mc-ctl --errors, ipmitool sel list"
FIND_DIMM = "compare dmidecode -t memory with a peer: a DIMM was disabled at boot, or sits badly"


def judge_dimms(
    facts: Facts, peers: tuple[int, float | None] = (0, None), *, limit: Thresholds
) -> Verdict:
    """First lost data, then missing memory; `peers`: how many nodes are alike, and their MiB."""
    ram = facts.machine.memory if facts.machine else None
    edac = facts.machine.edac if facts.machine else None
    if ram is None or edac is None:
        sentence = "its memory or ECC counters could not be read"
        return unknown(sentence, advice="mount /proc and /sys")
    verdict = ecc_verdict(facts, edac, limit)
    if verdict is not None and verdict.outcome is Outcome.FAIL:
        return verdict
    number, usual = peers
    if usual is not None and ram.total_mib < min_complete_mib(usual, limit):
        sentence = f"{memory(ram.total_mib)} of memory; {memory(usual)} is usual in its group"
        conclude = fail if number > 1 else warn
        return conclude(f"{sentence} ({count(number, 'node')} with it)", advice=FIND_DIMM)
    if verdict is not None:
        return verdict
    if not edac.watched and usual is None:
        return not_run(f"no ECC counters here, no peers to compare {memory(ram.total_mib)} with")
    counters = f"{count(edac.watched, 'DIMM')} without a lasting error" if edac.watched else ""
    return ok(f"{memory(ram.total_mib)}; {counters or 'no driver counts its ECC errors'}")


def ecc_verdict(facts: Facts, edac: Edac, limit: Thresholds) -> Verdict | None:
    """What the ECC counters say; not run where host.hardware_errors already fails the node."""
    if edac.errors and log_has_memory_fault(facts):
        return not_run(f"errors on {edac.errors[0].name}: host.hardware_errors judges them")
    if broken := [dimm for dimm in edac.errors if dimm.uncorrected]:
        errors = count(broken[0].uncorrected, "uncorrected error")
        sentence = f"{errors} on {broken[0].name}, 0 expected"
        more = f" (and {count(len(broken) - 1, 'more DIMM')})" if len(broken) > 1 else ""
        return fail(sentence + more, advice=REPLACE_DIMM, dimms=[dimm.name for dimm in broken])
    failing = failing_dimm(edac, max(0.0, facts.time_s - facts.boot_s), limit)
    return warn(failing, advice=REPLACE_DIMM) if failing else None


def test_host_dimms(node: Node, conclude: Conclude) -> None:
    """A DIMM that failed at boot or loses bits takes memory, speed and, in the end, the job."""
    total_of_peers = among(total_mib, gpu_models(node.facts))
    usual, number = node.group.median(total_of_peers), 0
    if usual is not None:
        number = node.group.count_at_least(total_of_peers, min_complete_mib(usual, node.limit))
    conclude(judge_dimms(node.facts, (number, usual), limit=node.limit))
