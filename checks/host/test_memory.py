"""Memory that is missing, in use or failing, in numbers that a judge can hold to its peers'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.facts.file_systems import SHM_FULL
from preflight.facts.hardware_log import faults
from preflight.facts.limits import limit
from preflight.facts.words import age, memory

if TYPE_CHECKING:
    from preflight.facts.machine_model import Dimm, Edac, Memory
    from preflight.facts.model import Facts

_DAY: Final = 86400


def total_mib(facts: Facts) -> float | None:
    """For the middle of a group."""
    seen = facts.machine.memory if facts.machine else None
    return None if seen is None else float(seen.total_mib)


def available_mib(facts: Facts) -> float | None:
    """For the middle of a group."""
    seen = facts.machine.memory if facts.machine else None
    return None if seen is None else float(seen.available_mib)


def whole(usual_mib: float) -> float:
    """The least that a machine shows of so much when no DIMM is missing."""
    percent, gib = limit("memory_short_percent"), limit("memory_short_gib")
    return usual_mib - max(usual_mib * percent / 100, gib * 1024)


def is_short(mine_mib: float, usual_mib: float) -> bool:
    """Whether so much is missing that a DIMM is: alike machines differ by less."""
    return mine_mib < whole(usual_mib)


def held_by(seen: Memory) -> tuple[str, str]:
    """Name who holds most of what is not available, and the cause that it shares with others."""
    used = max(1, seen.total_mib - seen.available_mib)
    if seen.shared_mib * 2 > used:
        # What fills /dev/shm is missing here as well: one cause, one finding.
        return f", {memory(seen.shared_mib)} are in shared memory", SHM_FULL
    if seen.huge_pages_mib * 2 > used:
        return f", {memory(seen.huge_pages_mib)} are reserved as huge pages", ""
    return "", ""


def short(seen: Memory, usual_mib: float | None) -> str:
    """Say that others hold much of it, by the middle of its group where there is one."""
    if usual_mib is not None:
        low = seen.available_mib < usual_mib * limit("memory_of_peers_percent") / 100
        return f"{memory(usual_mib)} is usual in its group" if low else ""
    least = limit("memory_idle_percent")
    low = seen.available_mib < seen.total_mib * least / 100
    return f"an idle node has over {least:g} %" if low else ""


def strained(seen: Memory) -> str:
    """Say that it stalls or swaps although some is left."""
    most, swapped = limit("memory_stalled_percent"), limit("swap_used_gib")
    if seen.stalled_percent is not None and seen.stalled_percent > most:
        waited = f"something waited for memory in {seen.stalled_percent:.0f} % of the last 10 s"
        return f"{waited}, at most {most:g} % are usual"
    if seen.swap_used_mib > swapped * 1024:
        return f"{memory(seen.swap_used_mib)} are swapped out, at most {swapped:g} GiB is usual"
    return ""


def uncorrected(edac: Edac) -> tuple[Dimm, ...]:
    """DIMMs that have lost data since counting began."""
    return tuple(one for one in edac.errors if one.uncorrected)


def wearing(edac: Edac, up_s: float) -> str:
    """Say on which DIMM corrected errors come faster than chance; nothing if on none."""
    allowed = limit("corrected_dimm_per_day")
    for one in sorted(edac.errors, key=lambda dimm: -dimm.corrected):
        counted_s = up_s if one.counted_s is None else one.counted_s
        # A burst within the first day counts as that day's.
        if one.corrected / max(1.0, counted_s / _DAY) > allowed:
            said = f"{one.corrected} corrected errors on {one.name} in {age(counted_s)}"
            return f"{said}; at most {allowed:g} a day are usual"
    return ""


def logged(facts: Facts) -> bool:
    """Whether `host.hardware_errors` fails for memory: a process that was killed is no proof."""
    lines = facts.kernel_log.lines if facts.kernel_log is not None else ()
    return any(one.part == "memory" and one.grade == "fatal" for one in faults(lines))
