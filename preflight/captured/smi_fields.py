"""One GPU's part of a text, as printed pairs of place and value, becomes what a probe tells."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from preflight.facts.model import Gpu, GpuProcess
from preflight.offline import smi_values as v
from preflight.offline.smi_places import PLACES, WANTED
from preflight.offline.smi_values import Readings

if TYPE_CHECKING:
    from collections.abc import Sequence

Path = str
Pairs = list[tuple[Path, str]]
"""(path, printed value) in the order of the text; a path may come again."""

_REASONS: Final = {
    "idle": "idle",
    "gpu_idle": "idle",
    "applications_clocks_setting": "application_clocks",
    "sw_power_cap": "power_cap",
    "hw_slowdown": "hw_slowdown",
    "hw_thermal_slowdown": "hw_thermal",
    "hw_power_brake_slowdown": "hw_power_brake",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "sw_thermal",
    "display_clock_setting": "display_clocks",
    "display_clocks_setting": "display_clocks",
}
_REASON: Final = re.compile(
    r"(?s)(?:^|/)clocks_(?:throttle|event)_reasons(?:/|\.)(?!counters)(.+)$"
)
_FOREIGN: Final = ("mig_device", "module_power_readings/", "gpu_memory_power_readings/")
_PREFIX: Final = re.compile(r"^clocks_(?:throttle|event)_reason_")
_RETIRED: Final = re.compile(
    r"retired_pages/(?:single|double)_bit_ecc$|_retirement/retired_count$"
    r"|^retired_pages\.(?:single_bit_ecc\.count|double_bit\.count|sbe|dbe)$"
)
_BEFORE_R570: Final = (
    ("reset_required", "GPU reset"),
    ("drain_and_reset_recommended", "drain and reset"),
)
_ECC: Final = re.compile(r"(?s)(?:^|/)ecc_errors/(volatile|aggregate)/(.+)$")


class Block(Struct, frozen=True):
    """One GPU's part of a text."""

    bus_id: str
    pairs: Pairs
    index: int | None = None


def gpu(block: Block, position: int) -> tuple[Gpu, tuple[v.Doubt, ...]]:
    """Turn one GPU's printed pairs into what the probe would have told; and what none can read."""
    pairs = [(path, value) for path, value in block.pairs if not any(f in path for f in _FOREIGN)]
    readings = Readings()
    printed = _by_place(pairs)
    for field, read, places in PLACES:
        for value in (value for place in places for value in printed.get(place, ())):
            readings.put(field, value, read)
    _ecc(readings, pairs)
    _retired(readings, pairs)
    _reasons(readings, pairs)
    _recovery(readings, pairs)
    _fabric(readings, pairs)
    values = readings.values
    if values.get("margin_c") is not None:
        values["margin_c"] -= values.get("slowdown_at") or 0
    index = position if block.index is None else block.index
    told = Gpu(
        index=index,
        uuid=_text(pairs, ("uuid", "gpu_uuid")),
        name=_text(pairs, ("product_name", "name", "gpu_name")),
        bus_id=bus(block.bus_id or _text(pairs, ("pci.bus_id", "gpu_bus_id", "pci/bus_id"))),
        memory_total_mib=values.get("memory_total_mib"),
        memory_used_mib=values.get("memory_used_mib"),
        mig_enabled=values.get("mig_enabled"),
        processes=_processes(pairs),
        health=readings.health(),
    )
    return told, readings.doubts(f"GPU {index}")


def _by_place(pairs: Pairs) -> dict[Path, list[str]]:
    """The values of each place that is looked for, in the order of the text."""
    found: dict[Path, list[str]] = {}
    for path, value in pairs:
        rest = path
        while rest:
            if rest in WANTED:
                found.setdefault(rest, []).append(value)
            rest = rest.partition("/")[2]
    return found


def bus(printed: str) -> str:
    """Spell a PCI address as the probe does; "" where it is none."""
    match = re.fullmatch(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])", printed)
    return f"{int(match[1] or '0', 16):04x}:{match[2].lower()}" if match else ""


def _text(pairs: Pairs, names: Sequence[str]) -> str:
    found = (value for name in names for path, value in pairs if path == name)
    return v.words(next(found, "").strip()) or ""


def _ecc(readings: Readings, pairs: Pairs) -> None:
    """Add up SRAM and DRAM (before R440: single_bit and double_bit totals; csv: totals)."""
    sums: dict[str, list[str]] = {}
    for path, value in pairs:
        field = ""
        if match := _ECC.search(path):
            field = _ecc_field(match[1], match[2])
        elif match := re.fullmatch(
            r"ecc\.errors\.(corrected|uncorrected)\.(volatile|aggregate)\.total", path
        ):
            field = f"ecc_{match[2]}_{match[1]}"
        if field:
            sums.setdefault(field, []).append(value)
        if re.search(r"ecc_errors/aggregate/sram_uncorrectable\w*$", path) or (
            path == "ecc.errors.uncorrected.aggregate.sram"
        ):
            sums.setdefault("sram_aggregate_uncorrected", []).append(value)
    for field, values in sums.items():
        told = [number for value in values if (number := v.number(value.strip("[] "))) is not None]
        for value in values if len(told) < len(values) and not any(told) else ():
            readings.put(field, value, _not_a_number)
        if len(told) == len(values) or any(told):
            readings.put(field, str(sum(told)), v.number)


def _not_a_number(word: str) -> None:
    del word


def _ecc_field(span: str, rest: str) -> str:
    last = rest.rpartition("/")[2]
    if rest in ("single_bit/total", "double_bit/total"):
        return f"ecc_{span}_{'corrected' if rest.startswith('single') else 'uncorrected'}"
    if "/" in rest or not last.startswith(("sram_", "dram_")):
        return ""
    if "uncorrectable" in last:
        return f"ecc_{span}_uncorrected"
    return f"ecc_{span}_corrected" if "correctable" in last else ""


def _retired(readings: Readings, pairs: Pairs) -> None:
    printed = [value for path, value in pairs if _RETIRED.search(path)]
    counts = [v.number(value) for value in printed]
    for value, count in zip(printed, counts, strict=True):
        if count is None and not v.refused(value):
            readings.doubt("retired_pages", value)
    if counts and None not in counts:
        readings.values["retired_pages"] = sum(count or 0 for count in counts)


def _reasons(readings: Readings, pairs: Pairs) -> None:
    """Gather what is "Active"; none of it is known where a part of it cannot be read."""
    active, told, refused = [], False, ""
    for path, value in pairs:
        match = _REASON.search(path)
        reason = _REASONS.get(_PREFIX.sub("", match[1].rpartition("/")[2])) if match else None
        if reason is None:
            continue
        on = v.switch(value.strip().strip("[]"))
        told = told or on is not None
        refused = value if on is None else refused
        if on is None and not v.refused(value):
            readings.doubt("clock_reasons", f"{reason}: {value}")
        active += [reason] * bool(on)
    if refused and not active:
        readings.put("clock_reasons", refused, _not_a_number)
    elif told:
        readings.values["clock_reasons"] = tuple(dict.fromkeys(active))


def _recovery(readings: Readings, pairs: Pairs) -> None:
    """Before R570 there were two words in place of one."""
    for place, meaning in _BEFORE_R570:
        for path, value in pairs:
            asked = v.switch(value) if path.endswith(f"gpu_reset_status/{place}") else None
            if asked is not None and readings.values.get("recovery_action") in (None, "none"):
                readings.values["recovery_action"] = meaning if asked else "none"


def _fabric(readings: Readings, pairs: Pairs) -> None:
    bad = ("true", "yes", "degraded", "unhealthy")
    readings.values["fabric_trouble"] = tuple(
        path.rpartition("/")[2].replace("_", " ")
        for path, value in pairs
        if "fabric/health/" in path and value.strip().lower() in bad
    )


def _processes(pairs: Pairs) -> tuple[GpuProcess, ...] | None:
    """Who is listed; () where the text says that nobody is; None where it does not say."""
    found: list[GpuProcess] = []
    listed = False
    for path, value in pairs:
        if not path.startswith("processes"):
            continue
        listed = True
        number = v.number(value.strip())
        if path.endswith(("/process_id", "/pid")) and number is not None:
            found.append(GpuProcess(number))
        elif path.endswith(("/used_gpu_memory", "/used_memory")) and found:
            found[-1] = GpuProcess(found[-1].pid, v.mebibytes(value.strip()))
    return tuple(found) if listed else None
