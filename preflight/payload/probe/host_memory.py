"""How much memory there is and is left, and what the ECC counters say of its DIMMs."""

from __future__ import annotations

import re

from .host_files import attempt_lines, keyed, lines, numbered, whole
from .text import attempt, clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KIB = 1024
_SOME = re.compile(r"^some avg10=([\d.]+)")


def read() -> dict[str, Any]:
    """Return `Memory`; LookupError or ValueError where /proc/meminfo is not what it should be."""
    return parse(lines("/proc/meminfo"), attempt_lines("/proc/pressure/memory"))


def parse(meminfo: list[str], pressure: list[str]) -> dict[str, Any]:
    """Read /proc/meminfo and /proc/pressure/memory."""
    known = {name: value.split() for name, value in keyed(meminfo).items()}

    def mib(name: str) -> int:
        return int(known[name][0]) // _KIB if name in known else 0

    huge_pages = int(known.get("HugePages_Total", ["0"])[0]) * mib("Hugepagesize")
    stalled = _SOME.match(pressure[0]) if pressure else None
    return {
        "total_mib": int(known["MemTotal"][0]) // _KIB,
        "available_mib": int(known["MemAvailable"][0]) // _KIB,
        "swap_used_mib": max(0, mib("SwapTotal") - mib("SwapFree")),
        "shared_mib": mib("Shmem"),
        "huge_pages_mib": huge_pages,
        "stalled_percent": min(100.0, float(stalled.group(1))) if stalled else None,
    }


def edac(root: str) -> dict[str, Any]:
    """Return `Edac`; OSError or ValueError where a counter that is there cannot be read."""
    folder = root + "/devices/system/edac/mc"
    found: list[dict[str, Any]] = []
    watched = 0
    for controller in numbered(folder, r"mc\d+"):
        dimms = _dimms(f"{folder}/{controller}", controller)
        watched += len(dimms)
        found += [*dimms, _rest(f"{folder}/{controller}", controller, dimms)]
    errors = [one for one in found if one["corrected"] or one["uncorrected"]]
    errors.sort(key=lambda one: (-one["uncorrected"], -one["corrected"]))
    return {"watched": watched, "errors": errors[:256]}


def _dimms(folder: str, controller: str) -> list[dict[str, Any]]:
    counted_s = _counted_s(folder)
    return [
        {
            "name": attempt(f"{folder}/{dimm}/dimm_label") or clean(f"{controller}/{dimm}"),
            "corrected": whole(f"{folder}/{dimm}/dimm_ce_count"),
            "uncorrected": whole(f"{folder}/{dimm}/dimm_ue_count"),
            "counted_s": counted_s,
        }
        for dimm in numbered(folder, r"(?:dimm|rank)\d+")
    ]


def _rest(folder: str, controller: str, dimms: list[dict[str, Any]]) -> dict[str, Any]:
    """What the controller counted beyond its DIMMs: old drivers know rows only, or no place."""
    told = {
        kind: whole(f"{folder}/{name}_count") - sum(one[kind] for one in dimms)
        for kind, name in (("corrected", "ce"), ("uncorrected", "ue"))
    }
    return {
        "name": clean(f"{controller}, no DIMM named"),
        "corrected": max(0, told["corrected"]),
        "uncorrected": max(0, told["uncorrected"]),
        "counted_s": _counted_s(folder),
    }


def _counted_s(folder: str) -> float | None:
    seconds = attempt(folder + "/seconds_since_reset")
    return float(seconds) if seconds.isdigit() else None
