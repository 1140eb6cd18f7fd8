"""What nvidia-smi and dcgmi print besides: csv of chosen readings, warnings, lost GPUs, errors."""

from __future__ import annotations

import csv
import re
from typing import Final

from msgspec import Struct

from preflight.facts.gpu_model import GpuHealth
from preflight.facts.model import Gpu
from preflight.offline.smi_fields import Block, bus

_COLUMN: Final = re.compile(r"^[a-z][a-z0-9_.]*(?: \[[A-Za-z/%]+\])?$")
_OURS: Final = re.compile(
    r"^(?:index|name|gpu_name|uuid|gpu_uuid|gpu_bus_id|pci\.|driver_version|vbios|inforom|ecc\.|mig\."
    r"|retired_pages|remapped_rows|clocks_|power\.|enforced\.|temperature\.|pcie\.|pstate|memory\."
    r"|fan\.|utilization\.|persistence_mode|compute_mode|fabric\.|gsp\.)"
)
_ASKED: Final = re.compile(
    r"^(?:\S*[$#>] ?)?(?:sudo )?nvidia-smi (?=[^|;&]*$)[^|;&]*--query-gpu="
    r"([a-z0-9_.]+(?:,[a-z0-9_.]+)+)(?: [^|;&]*)?$"
)
_LOOP: Final = re.compile(
    r"^(?>.*?--query-gpu=).* (?:-l|-lms|--loop(?:-ms)?)[ =]?[0-9]", re.MULTILINE
)
_WHICH: Final = frozenset(("index", "uuid", "gpu_uuid", "gpu_bus_id", "pci.bus_id", "serial"))
_VALUE: Final = re.compile(r"-?[0-9][0-9A-Fa-f:.]*(?: [A-Za-z]+| %)?|\[[^\]]*\]|N/A")
_ERROR: Final = re.compile(r"error|lost|timeout", re.IGNORECASE)
_INFOROM: Final = re.compile(r"infoROM is corrupted at gpu\s+([0-9a-fA-F:.]+)", re.IGNORECASE)
_BUS: Final = r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"
_LOST: Final = (
    re.compile(
        rf"determine the device handle for\s+GPU\s*+(\d*):?\s*+{_BUS}:\s*+(.+)", re.IGNORECASE
    ),
    re.compile(
        r"determine the device handle for\s+GPU\s*(?:(\d{1,3}):?\s+)?(\S+):\s++(.+)", re.IGNORECASE
    ),  # an address that is none: an old driver's, or one that somebody typed
    re.compile(
        rf"^[^\S\n]*GPU\s*+(\d*):?\s*+(?:{_BUS})?:?\s*+((?:GPU )?is lost.*)",
        re.MULTILINE | re.IGNORECASE,
    ),
)
_FAILED: Final = re.compile(
    r"NVIDIA-SMI has failed[^\n]*|Failed to initialize NVML[^\n]*|No devices were found[^\n]*"
    r"|NVIDIA-SMI couldn't find[^\n]*|NVML library version[^\n]*"
)
_DCGM_GPU: Final = re.compile(r"\bGPU (\d{1,3})\b")


class Row(Struct, frozen=True):
    """One GPU of a csv."""

    driver: str
    block: Block


def parse_csv(text: str) -> tuple[tuple[Row, ...], str] | None:
    """Read `--query-gpu=... --format=csv`: (rows, what is wrong); None where no column is named."""
    lines = text.splitlines()
    for at, line in enumerate(lines[:50]):
        columns = _header(line) or _asked(line, lines[at + 1 :])
        if columns:
            rows, damaged = _rows(columns, lines[at + 1 :])
            if not damaged and len(rows) > 1 and _LOOP.search(text) and _WHICH.isdisjoint(columns):
                damaged = "its rows come in a loop, and which GPU each is of is not told"
                rows = (max(rows, key=_errors),)
            return rows, damaged
    return None


def _header(line: str) -> list[str]:
    """Columns of the line that names them; [] for another. One alone must be no plain word."""
    columns = [column.strip() for column in line.split(",")]
    named = all(_COLUMN.match(column) for column in columns)
    plain = len(columns) == 1 and not re.search(r"[._]", columns[0])
    known = named and not plain and any(_OURS.match(column) for column in columns)
    return [column.partition(" ")[0] for column in columns] if known else []


def _asked(line: str, below: list[str]) -> list[str]:
    """Columns that a command typed above the rows asks for; [] where what follows is no row."""
    match = _ASKED.match(line.strip())
    columns = match[1].split(",") if match else []
    first = next((row for row in below if row.strip()), "").split(",")
    fits = len(first) == len(columns) and any(_VALUE.fullmatch(cell.strip()) for cell in first)
    return columns if fits else []


def _errors(row: Row) -> int:
    return sum(_ERROR.search(value) is not None for _, value in row.block.pairs)


def _rows(columns: list[str], lines: list[str]) -> tuple[tuple[Row, ...], str]:
    rows, damaged = [], ""
    for line in lines:
        try:
            cells = next(csv.reader([line], skipinitialspace=True), [])
        except csv.Error:
            cells = []
        if len(cells) != len(columns):
            damaged = damaged or ("a row of it is cut off" if line.strip() else "")
            continue
        pairs = [(name, cell.strip()) for name, cell in zip(columns, cells, strict=True)]
        told = dict(pairs)
        index = told.get("index", "")
        number = int(index) if index.isdecimal() and len(index) < 4 else None  # noqa: PLR2004 - an index
        rows.append(Row(told.get("driver_version", ""), Block("", pairs, number)))
    return tuple(rows), damaged or ("" if rows else "it has no row")


def corrupted_inforoms(text: str) -> tuple[str, ...]:
    """Bus ids of the GPUs whose InfoROM nvidia-smi warns of."""
    return tuple(bus(match.strip(".:")) or match for match in _INFOROM.findall(text))


def lost_gpus(text: str) -> tuple[str, ...]:
    """GPUs that could not be opened, in words that begin with "GPU N" where N is told."""
    found = []
    seen = set()
    for match in (match for pattern in _LOST for match in pattern.finditer(text)):
        if match.start() in seen:
            continue
        seen.add(match.start())
        index, where, why = match[1], match[2] or "", match[3]
        place = f"{bus(where) or where} " if where else ""
        found.append(f"GPU {index or '?'}: {place}{why.strip()}"[:200])
    return tuple(dict.fromkeys(found))


def failure(text: str) -> str:
    """What nvidia-smi said in place of an answer; "" where it answered."""
    match = _FAILED.search(text)
    return match[0].strip()[:300] if match else ""


def parse_dcgm(text: str) -> tuple[Gpu, ...] | None:
    """Read the failures of `dcgmi diag`, by GPU; None where it is no such output."""
    if not re.search(r"\|\s*Diagnostic\s*\|\s*Result", text):
        return None
    joined: list[str] = []
    for line in text.splitlines():
        cells = line.strip().strip("|").split("|")
        if len(cells) != 2 or line.strip().startswith("+"):  # noqa: PLR2004 - its two columns
            continue
        if cells[0].strip() or not joined:
            joined.append(f"{cells[0].strip()}: {cells[1].strip()}")
        else:
            joined[-1] += f" {cells[1].strip()}"
    found: dict[int, list[str]] = {}
    for line in joined:
        if re.match(r"(?i)(?:error|warning)s?:|.*\bfail", line):
            for number in _DCGM_GPU.findall(line) or ["0"]:
                found.setdefault(int(number), []).append(line)
    return tuple(_told_by_dcgm(number, lines) for number, lines in sorted(found.items()))


def _told_by_dcgm(number: int, lines: list[str]) -> Gpu:
    said = " ".join(lines).lower()
    pending = "remapping" in said and "pending" in said
    uncorrected = "uncorrectable" in said or "double bit" in said or "dbe" in said
    plain = pending or uncorrected
    health = GpuHealth(
        remap_pending=True if pending else None,
        remap_failed=True if "remap" in said and "fail" in said else None,
        uncorrected_said=True if uncorrected else None,
        errors=() if plain else tuple(f"dcgmi diag: {line}"[:300] for line in lines[:8]),
    )
    return Gpu(index=number, uuid="", name="", bus_id="", health=health)
