"""Reads the table of plain `nvidia-smi`, in which a reading is known by its place."""

from __future__ import annotations

import re
from typing import Final

from preflight.captured import smi_fields as fields
from preflight.captured.smi_fields import Listing, Readings, bus
from preflight.core.statistics import grouped
from preflight.facts.model import Gpu, GpuProcess

_HEADER: Final = re.compile(
    r"^(?>.*?NVIDIA-SMI\s+)\S.*?(?:Driver|KMD) Version:\s*(\S+)", re.MULTILINE
)
_COLUMNS: Final = re.compile(r"Bus-Id\s+Disp\.A")
_ROW_1: Final = re.compile(r"^\s*(\d{1,3})\s+(\S(?:.*\S)?)\s+(On|Off|N/A|ERR!|WDDM|TCC|MCDM)\s*$")
_WINDOWS: Final = ("WDDM", "TCC", "MCDM")
"""Windows has models of its driver, and no persistence mode."""
_ROW_2: Final = re.compile(
    r"^\s*(\S+?%?)\s+(\S+?)C?\s+(P\d{1,2}|ERR!|N/A|Unknown)\s++([^/]*[^/\s])\s*/\s*+(.*\S)\s*$"
)
_PROCESS_ROW: Final = re.compile(
    r"^\s*(\d{1,3})\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(\d{1,10})\s+[A-Z](?:\+[A-Z])*"
    r"(?:\s++\S(?:.*\S)?|\s)\s+(\S+)\s*$"
)
"""Drivers before 450 have no MIG instances (GI, CI) and no columns for them."""
_MIG_ROW: Final = re.compile(r"^\s*(\d{1,3})\s+\d+\s+\d+\s+\d+\s*$")
_PROCESSES_HEAD: Final = re.compile(
    r"^[^\S\n]*\|\s*Processes:\s+(?:GPU Memory\s+)?\|", re.MULTILINE
)
_PROCESSES_COLUMNS: Final = re.compile(
    r"^[^\S\n]*\|\s*GPU\s++.*PID\s+Type\s+Process name", re.MULTILINE
)


def parse_table(text: str) -> Listing | None:
    """Read the table; None if not even its head is there."""
    header = _HEADER.search(text)
    if header is None and not _COLUMNS.search(text):
        return None
    groups: list[list[list[str]]] = []
    rows: list[list[str]] = []
    fewest = 1
    for line in text.splitlines():
        if "Processes:" in line or "MIG devices:" in line:
            break
        if line.strip().startswith("|="):
            fewest, rows = len(rows) + 1, []  # the head has as many rows as each GPU
        cells = _cells(line)
        if len(cells) == 3 and not _COLUMNS.search(line):  # noqa: PLR2004 - the table's columns
            rows.append(cells)
        elif line.strip().startswith("+-") and rows:
            groups.append(rows)
            rows = []
    whole = not rows and all(fewest <= len(part) <= _MOST_ROWS for part in groups)
    groups += [rows] if rows else []
    parts = [part for part in groups if _ROW_1.match(part[0][0])]
    tail = text[text.find("Processes:") :] if "Processes:" in text else ""
    processes = _processes(tail)
    mig = _mig_errors(text)
    read_gpus = [_gpu(part, processes, mig) for part in parts]
    gpus = tuple(gpu for gpu, _ in read_gpus)
    doubts = tuple(doubt for _, gpu_doubts in read_gpus for doubt in gpu_doubts)
    damaged = _smi_table_damage(gpus, tail, whole=whole and len(parts) == len(groups))
    if unlisted := sorted({*(processes or ())} - {gpu.index for gpu in gpus}):
        damaged = damaged or f"it lists a process of GPU {unlisted[0]}, but not that GPU"
    return Listing(gpus, header[1] if header else "", damaged, doubts)


_MOST_ROWS: Final = 3
"""Of one GPU; more are those of two, if the lines between are missing."""


def only_processes(text: str) -> bool:
    """Whether the lower half of the table is there without the GPUs above it."""
    return bool(_PROCESSES_HEAD.search(text) and _PROCESSES_COLUMNS.search(text))


def _smi_table_damage(gpus: tuple[Gpu, ...], tail: str, *, whole: bool) -> str:
    if not gpus:
        return "the table ends after its head"
    if not whole:
        return f"the table ends within GPU {gpus[-1].index}"
    if not tail:
        return "its table of processes is missing"
    if not re.search(r"\n[^\S\n]*\+-+\+[^\S\n]*$", tail.rstrip() + "\n", re.MULTILINE):
        return "its table of processes is cut off"
    return ""


def _cells(line: str) -> list[str]:
    stripped = line.strip()
    return stripped[1:-1].split("|") if stripped.startswith("|") and stripped.endswith("|") else []


def _gpu(
    part: list[list[str]], processes: dict[int, list[GpuProcess]] | None, mig: dict[int, int]
) -> tuple[Gpu, tuple[fields.Doubt, ...]]:
    """The GPU of some rows, and its readings that cannot be parsed."""
    readings = Readings()
    index, name, persistence = _ROW_1.match(part[0][0]).groups()  # type: ignore[union-attr]  # chosen by it
    if persistence in _WINDOWS:
        readings.lack("persistence")
    else:
        readings.put("persistence", persistence, fields.switch)
    number = int(index)
    _read_ecc(readings, part[0][2].strip(), mig.get(number))
    if len(part) > 1:
        _read_second_row(readings, part[1])
    if len(part) > 2:  # noqa: PLR2004 - a third row
        readings.put("mig_enabled", part[2][2].strip(), fields.switch)
    if len(part) > 1:
        _read_memory(readings, part[1][1].strip())
    return readings.gpu(
        index=number,
        uuid="",
        name=fields.words(name) or "",
        bus_id=bus(part[0][1].split()[0]) if part[0][1].split() else "",
        processes=None if processes is None else tuple(processes.get(number, ())),
    )


def _read_memory(readings: Readings, printed: str) -> None:
    """Used and total; "N/A" for both if a GPU in MIG mode hides them from a container."""
    match = re.match(r"(\S+)\s*/\s*(\S+)", printed)
    if printed == "N/A":
        readings.lack("memory_used_mib", "memory_total_mib")
    elif match:
        readings.put("memory_used_mib", match[1], fields.mebibytes)
        readings.put("memory_total_mib", match[2], fields.mebibytes)


def _read_ecc(readings: Readings, printed: str, instance_errors: int | None) -> None:
    """A number; Off if ECC is off; On if MIG hides it and its instances have counts."""
    field = "ecc_volatile_uncorrected"
    if printed in ("On", "Off"):
        readings.put("ecc_on", printed, fields.switch)
        if instance_errors is None:
            readings.lack(field)
        else:
            readings.values[field] = instance_errors
        return
    readings.put(field, printed, fields.number_of)
    if readings.values.get(field) is not None:
        readings.values["ecc_on"] = True
    elif printed == "N/A":
        readings.lack("ecc_on")


def _read_second_row(readings: Readings, cells: list[str]) -> None:
    match = _ROW_2.match(cells[0])
    if match:
        fan, temperature, state, power, limit = match.groups()
        readings.put("fan_pct", fan, fields.percent)
        readings.put("temperature_c", temperature, fields.celsius)
        readings.put("performance_state", state, fields.state)
        readings.put("power_draw_w", power, fields.watts)
        readings.put("power_limit_w", limit, fields.watts)
    else:
        errors = re.findall(r"ERR!|Unknown Error", cells[0])
        if not errors and cells[0].strip():
            readings.doubt("temperature_c", cells[0].strip())
        for error in errors:
            readings.failed(f"its fan, temperature or power: {error}")
    busy = re.match(r"\s*(\S+)\s+(.*?)\s*$", cells[2])
    if busy:
        readings.put("utilization_pct", busy[1], fields.percent)
        readings.put("compute_mode", busy[2], fields.compute_mode)


def _processes(tail: str) -> dict[int, list[GpuProcess]] | None:
    """Processes by GPU; {} if none is listed; None if the table of processes is missing."""
    if not tail:
        return None
    return grouped(
        (int(match[1]), GpuProcess(int(match[2]), fields.mebibytes(match[3])))
        for line in tail.splitlines()
        for cell in _cells(line)
        if (match := _PROCESS_ROW.match(cell))
    )


def _mig_errors(text: str) -> dict[int, int]:
    """Uncorrectable errors of the MIG instances of each GPU."""
    errors: dict[int, int] = {}
    start = text.find("MIG devices:")
    for line in text[start:].splitlines() if start >= 0 else ():
        if "Processes:" in line:
            break
        cells = _cells(line)
        match = _MIG_ROW.match(cells[0]) if len(cells) == 4 else None  # noqa: PLR2004 - its columns
        numbers = re.findall(r"\d+", cells[2]) if match else []
        if match and len(numbers) == 2:  # noqa: PLR2004 - SMs and errors
            errors[int(match[1])] = errors.get(int(match[1]), 0) + int(numbers[1])
    return errors
