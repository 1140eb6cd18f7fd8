"""Turns one GPU's part of a text, as printed (place, value) pairs, into the facts of a probe.

All forms of nvidia-smi (-q, XML, csv, table) print the same words for missing readings.

A place is the end of a path of section names in lower case, parts joined by "/"; in csv, a column.
If a reading has several places, the first with a value counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, Literal

from msgspec import Struct, ValidationError, convert

from preflight.core.files import shipped_table
from preflight.core.text import sanitize, whole
from preflight.facts.gpu import GpuHealth
from preflight.facts.model import Gpu, GpuPair, GpuProcess

_ABSENT: Final = ("n/a", "not supported", "requested functionality has been deprecated", "none")
_ABSENT_LETTER: Final = "n"
"""What narrow columns and some scripts leave of N/A."""
_DENIED: Final = "insufficient permission"
_FAILED: Final = ("err!", "error", "lost", "requires reset", "unknown", "timeout")
_NUMBER: Final = re.compile(r"(-?[0-9]{1,19}(?:\.[0-9]{1,9})?) ?([A-Za-z%()]*)")
_COUNT: Final = re.compile(r"[0-9]{1,19}(?: bank\(s\))?")
_HOTTEST_C: Final = 200
_LONGEST_WORD: Final = 60


class Doubt(Struct, frozen=True):
    """One printed reading that cannot be parsed: it may hide a fault."""

    field: str
    why: str


class Readings:
    """Collects one GPU's readings and refusals into a `GpuHealth`."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._refused: dict[str, list[str]] = {"lacks": [], "denied": [], "errors": []}
        self._unreadable: dict[str, str] = {}

    def put(self, field: str, printed: str, read: Callable[[str], Any]) -> None:
        """Parse a printed value; the first value counts."""
        if self.values.get(field) is not None:
            return
        word, why = _bare(printed), refusal(printed)
        value = read(word) if why != "lacks" or field == "recovery_action" else None
        if value is not None:
            self.values[field] = value
        elif why == "errors":
            self._refuse(why, f"{field}: {sanitize(word[:_LONGEST_WORD])}")
        elif why:
            self._refuse(why, field)
        else:
            self.doubt(field, word)

    def doubt(self, field: str, word: str) -> None:
        """Note a printed value that is neither a reading nor a reason why there is none."""
        self._unreadable.setdefault(field, sanitize(word[:_LONGEST_WORD]))

    def lack(self, *fields: str) -> None:
        """Note that the board has no such readings."""
        for field in fields:
            self._refuse("lacks", field)

    def failed(self, line: str) -> None:
        """Note an error of the GPU that another program reports."""
        self._refused["errors"].append(line[:200])

    def health(self) -> GpuHealth:
        """The typed readings; an impossible value is an error."""
        refused = {
            kind: [line for line in lines if kind == "errors" or line not in self.values]
            for kind, lines in self._refused.items()
        }
        possible = {}
        for name in [name for name in self.values if name in _FIELDS]:
            try:
                convert({name: self.values[name]}, GpuHealth)
                possible[name] = self.values[name]
            except ValidationError:
                refused["errors"].append(f"{name}: absurd value")
        return convert({**possible, **refused}, GpuHealth)

    def gpu(self, *, index: int, **identity: Any) -> tuple[Gpu, tuple[Doubt, ...]]:
        """The GPU of these readings, and its readings that cannot be parsed."""
        health = self.health()
        values: dict[str, Any] = {
            name: self.values.get(name)
            for name in ("memory_total_mib", "memory_used_mib", "mig_enabled")
        }
        gpu = Gpu(index=index, health=health, **values, **identity)
        doubts = tuple(
            Doubt(
                field, f"GPU {index}: its {field.replace('_', ' ')} reads {word!r}: no such reading"
            )
            for field, word in self._unreadable.items()
            if self.values.get(field) is None or field == "clock_reasons"
        )
        return gpu, doubts

    def _refuse(self, kind: str, line: str) -> None:
        if line not in self._refused[kind]:
            self._refused[kind].append(line)


_FIELDS: Final = frozenset(GpuHealth.__struct_fields__) - {"lacks", "denied", "errors"}


def refusal(printed: str) -> Literal["lacks", "denied", "errors", ""]:
    """The kind of reason that a text gives for the lack of a reading; "" where it gives none."""
    low = _bare(printed).lower()
    if low == _ABSENT_LETTER or low.startswith(_ABSENT):
        return "lacks"
    if _DENIED in low:
        return "denied"
    return "errors" if any(failure in low for failure in _FAILED) else ""


def _bare(printed: str) -> str:
    return printed.strip().strip("[]").strip()


def number_of(word: str) -> int | None:
    """Read a count: 177 or "639 bank(s)"; None for anything else, other units included."""
    return int(word.partition(" ")[0]) if _COUNT.fullmatch(word) else None


def _whole(word: str, unit: str) -> int | None:
    number = _measured(word, unit)
    return None if number is None else int(number)


def _measured(word: str, unit: str) -> float | None:
    """A number with that unit, or bare as csv may print it; never with another unit."""
    match = _NUMBER.fullmatch(word)
    return float(match[1]) if match and match[2] in ("", unit) else None


mebibytes, percent = partial(_whole, unit="MiB"), partial(_whole, unit="%")
watts = partial(_measured, unit="W")
"""Read "12 MiB", "30 %", "43.89 W"."""


def celsius(word: str) -> int | None:
    """Read "38 C" or "-2 C"; None for a temperature that no chip survives."""
    degrees = _whole(word, "C")
    return degrees if degrees is not None and abs(degrees) <= _HOTTEST_C else None


def lanes(word: str) -> int | None:
    """Read "16x"; None for a link without lanes."""
    return _whole(word, "x") or None


def seconds(word: str) -> float | None:
    """Read "204642816 us"."""
    lasted_us = _measured(word, "us")
    return None if lasted_us is None else lasted_us / 1e6


def switch(word: str) -> bool | None:
    """Read Enabled, On, Yes, Active, True, and their opposites."""
    low = word.lower()
    if low in ("enabled", "on", "yes", "active", "true", "1"):
        return True
    return False if low in ("disabled", "off", "no", "not active", "false", "0") else None


def words(word: str) -> str | None:
    """Read a version or a name; None for a word that means a failure."""
    failed = any(failure in word.lower() for failure in _FAILED)
    return word[:200] if word and word.isprintable() and not failed else None


def compute_mode(word: str) -> str | None:
    """Read a compute mode as the table or -q prints it."""
    mode: str | None = table()["compute_modes"].get(word.lower())
    return mode


def state(word: str) -> str | None:
    """Read P0 to P15."""
    return word if re.fullmatch(r"P1?[0-9]", word) else None


def action(word: str) -> str | None:
    """Read a recovery action in the probe's words."""
    if any(failure in word.lower() for failure in _FAILED) or not word.isprintable():
        return None
    low = word.lower().replace("_", " ")
    if low in ("n/a", "not supported") or low.startswith("requested functionality"):
        return None
    known: str = table()["recovery_actions"].get(low, word[:60])
    return known


def fabric(word: str) -> str | None:
    """Read the state of a fabric registration: "Completed", "In Progress"."""
    low = word.lower()
    return low if low in ("completed", "in progress", "not started") else None


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    **{read.__name__: read for read in (words, switch, compute_mode, number_of, action, seconds)},
    **{read.__name__: read for read in (celsius, lanes, state, fabric)},
    "watts": watts,
    "percent": percent,
    "mebibytes": mebibytes,
}
"""By the name that nvidia_smi.toml gives them."""


@cache
def table() -> dict[str, Any]:
    """What nvidia-smi prints of a GPU, from nvidia_smi.toml."""
    return shipped_table(__file__, "nvidia_smi.toml")


@cache
def _known_places() -> frozenset[str]:
    return frozenset(place for row in table()["readings"].values() for place in row["at"])


Path = str
Pairs = list[tuple[Path, str]]
"""(path, printed value) in the order of the text; a path may repeat."""

_REASON: Final = re.compile(
    r"(?s)(?:^|/)clocks_(?:throttle|event)_reasons(?:/|\.)(?!counters)(.+)$"
)
_NOT_GPU: Final = ("mig_device", "module_power_readings/", "gpu_memory_power_readings/")
_PREFIX: Final = re.compile(r"^clocks_(?:throttle|event)_reason_")
_BITS: Final = re.compile(r"0x([0-9a-fA-F]{1,16})")
_RETIRED: Final = re.compile(
    r"retired_pages/(?:single|double)_bit_ecc$|_retirement/retired_count$"
    r"|^retired_pages\.(?:single_bit_ecc\.count|double_bit\.count|sbe|dbe)$"
)
_ECC: Final = re.compile(r"(?s)(?:^|/)ecc_errors/(volatile|aggregate)/(.+)$")


_LONGEST_PATH: Final = 200
"""Characters of a path; nvidia-smi's have some 90, and each is part of all paths below it."""


def join_path(path: str, name: str) -> str:
    """The path of a name in a section; "..." if it is too long."""
    joined = f"{path}/{name}" if path else name
    return joined if len(joined) <= _LONGEST_PATH else "..."


class Block(Struct, frozen=True):
    """One GPU's part of a text."""

    bus_id: str
    pairs: Pairs
    index: int | None = None


class Listing(Struct, frozen=True):
    """The GPUs of a text, its driver, and what is missing or unreadable."""

    gpus: tuple[Gpu, ...]
    driver: str = ""
    damaged: str = ""
    doubts: tuple[Doubt, ...] = ()
    pairs: tuple[GpuPair, ...] | None = None
    advice: str = ""
    """What helps, where the text is whole and does not tell enough."""


def listed(blocks: Iterable[Block], driver: str, damaged: str) -> Listing:
    """Turn every GPU's printed pairs into the facts of a probe."""
    read_gpus = [gpu(block, at) for at, block in enumerate(blocks)]
    doubts = tuple(doubt for _, gpu_doubts in read_gpus for doubt in gpu_doubts)
    return Listing(tuple(pair[0] for pair in read_gpus), driver, damaged, doubts)


def gpu(block: Block, position: int) -> tuple[Gpu, tuple[Doubt, ...]]:
    """Turn one GPU's printed pairs into the facts of a probe, and the unreadable readings."""
    pairs = [(path, value) for path, value in block.pairs if not any(f in path for f in _NOT_GPU)]
    readings = Readings()
    printed = _by_place(pairs)
    for field, row in table()["readings"].items():
        for value in (value for place in row["at"] for value in printed.get(place, ())):
            readings.put(field, value, _READERS[row["read"]])
    _ecc(readings, pairs)
    _retired(readings, pairs)
    _clock_reasons(readings, pairs)
    _recovery(readings, pairs)
    _fabric(readings, pairs)
    values = readings.values
    if values.get("margin_c") is not None:
        values["margin_c"] -= values.get("slowdown_at") or 0
    return readings.gpu(
        index=position if block.index is None else block.index,
        uuid=_text(pairs, ("uuid", "gpu_uuid")),
        name=_text(pairs, ("product_name", "name", "gpu_name")),
        bus_id=bus(block.bus_id or _text(pairs, ("pci.bus_id", "gpu_bus_id", "pci/bus_id"))),
        processes=_processes(pairs),
    )


def _by_place(pairs: Pairs) -> dict[Path, list[str]]:
    """The values of each known place, in the order of the text."""
    by_place: dict[Path, list[str]] = {}
    for path, value in pairs:
        place = path
        while place:
            if place in _known_places():
                by_place.setdefault(place, []).append(value)
            place = place.partition("/")[2]
    return by_place


def bus(printed: str) -> str:
    """Spell a PCI address as the probe does; "" for another text."""
    match = re.fullmatch(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])", printed)
    return f"{int(match[1] or '0', 16):04x}:{match[2].lower()}" if match else ""


def _text(pairs: Pairs, names: Sequence[str]) -> str:
    values = (value for name in names for path, value in pairs if path == name)
    return words(next(values, "").strip()) or ""


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
        counts = [
            number for value in values if (number := number_of(value.strip("[] "))) is not None
        ]
        for value in values if len(counts) < len(values) and not any(counts) else ():
            readings.put(field, value, lambda _: None)
        if len(counts) == len(values) or any(counts):
            readings.put(field, str(sum(counts)), number_of)


def _ecc_field(span: str, counter: str) -> str:
    last = counter.rpartition("/")[2]
    if counter in ("single_bit/total", "double_bit/total"):
        return f"ecc_{span}_{'corrected' if counter.startswith('single') else 'uncorrected'}"
    if "/" in counter or not last.startswith(("sram_", "dram_")):
        return ""
    if "uncorrectable" in last:
        return f"ecc_{span}_uncorrected"
    return f"ecc_{span}_corrected" if "correctable" in last else ""


def _retired(readings: Readings, pairs: Pairs) -> None:
    printed = [value for path, value in pairs if _RETIRED.search(path)]
    counts = [number_of(value) for value in printed]
    for value, count in zip(printed, counts, strict=True):
        if count is None and not refusal(value):
            readings.doubt("retired_pages", value)
    if counts and None not in counts:
        readings.values["retired_pages"] = sum(count or 0 for count in counts)


def _clock_reasons(readings: Readings, pairs: Pairs) -> None:
    """Collect the "Active" reasons; unknown if a part cannot be read."""
    reasons, has_state, refusal_text = [], False, ""
    for path, value in pairs:
        match = _REASON.search(path)
        name = _PREFIX.sub("", match[1].rpartition("/")[2]) if match else ""
        if name == "active" and (bits := _BITS.fullmatch(value.strip())):
            has_state, on_bits = True, int(bits[1], 16)
            reasons += [word for at, word in enumerate(table()["reason_bits"]) if on_bits >> at & 1]
        reason = table()["clock_reasons"].get(name)
        if reason is None:
            continue
        on = switch(value.strip().strip("[]"))
        has_state = has_state or on is not None
        refusal_text = value if on is None else refusal_text
        if on is None and not refusal(value):
            readings.doubt("clock_reasons", f"{reason}: {value}")
        reasons += [reason] * bool(on)
    if refusal_text and not reasons:
        readings.put("clock_reasons", refusal_text, lambda _: None)
    elif has_state:
        readings.values["clock_reasons"] = tuple(dict.fromkeys(reasons))


def _recovery(readings: Readings, pairs: Pairs) -> None:
    """Before R570 there were two fields instead of one."""
    for place, meaning in table()["gpu_reset_status"].items():
        for path, value in pairs:
            required = switch(value) if path.endswith(f"gpu_reset_status/{place}") else None
            if required is not None and readings.values.get("recovery_action") in (None, "none"):
                readings.values["recovery_action"] = meaning if required else "none"


def _fabric(readings: Readings, pairs: Pairs) -> None:
    cluster = _text(pairs, ("fabric/clusteruuid", "fabric/clusterUuid"))
    clique = whole(_text(pairs, ("fabric/cliqueid", "fabric/cliqueId")))
    if cluster.strip("0-") and clique is not None:
        readings.values["fabric_domain"] = f"{cluster}/{clique}"
    bad_states = ("true", "yes", "degraded", "unhealthy")
    readings.values["fabric_trouble"] = tuple(
        path.rpartition("/")[2].replace("_", " ")
        for path, value in pairs
        if "fabric/health/" in path and value.strip().lower() in bad_states
    )


def _processes(pairs: Pairs) -> tuple[GpuProcess, ...] | None:
    """The listed processes; () if the text says that there are none; None if it does not say."""
    processes: list[GpuProcess] = []
    listed = False
    for path, value in pairs:
        if not path.startswith("processes") or value.startswith("left out"):
            continue  # `preflight capture` leaves them out
        listed = True
        number = number_of(value.strip())
        if path.endswith(("/process_id", "/pid")) and number is not None:
            processes.append(GpuProcess(number))
        elif path.endswith(("/used_gpu_memory", "/used_memory")) and processes:
            processes[-1] = GpuProcess(processes[-1].pid, mebibytes(value.strip()))
    return tuple(processes) if listed else None
