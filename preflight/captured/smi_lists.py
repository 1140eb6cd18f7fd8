"""csv, warnings, lost GPUs, and NVLinks as nvidia-smi and dcgmi print them.

A live node is known by its group and its inventory, and is not asked this. A text of one GPU has
neither: where its board is sold with and without a bridge, it clears nobody and condemns nobody.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from preflight.captured.smi_fields import Block, Listing, bus, listed
from preflight.checks.gpu.deviations import usual_links
from preflight.facts.boards import board, must_be_up, settled, up_links
from preflight.facts.gpu import GpuHealth, LinkErrors
from preflight.facts.model import Gpu, GpuPair, NvLink

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


_COLUMN: Final = re.compile(r"^[a-z][a-z0-9_.]{0,99}(?: \[[A-Za-z/%]{1,20}\])?$")
_OURS: Final = re.compile(
    r"^(?:index|name|gpu_name|uuid|gpu_uuid|gpu_bus_id|pci\.|driver_version|vbios|inforom|ecc\.|mig\."
    r"|retired_pages|remapped_rows|clocks_|power\.|enforced\.|temperature\.|pcie\.|pstate|memory\."
    r"|fan\.|utilization\.|persistence_mode|compute_mode|fabric\.|gsp\.)"
)
_ASKED: Final = re.compile(
    r"^(?:\S*[$#>] ?)?(?:sudo )?nvidia-smi (?=[^|;&]*$)[^|;&]*--query-gpu="
    r"([a-z0-9_.]{1,100}(?:,[a-z0-9_.]{1,100})+)(?: [^|;&]*)?$"
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


def parse_csv(text: str) -> Listing | None:
    """Read `--query-gpu=... --format=csv`; None where no column is named."""
    lines = text.splitlines()
    for at, line in enumerate(lines[:50]):
        columns = _header(line) or _asked(line, lines[at + 1 :])
        if columns:
            rows, damaged = _rows(columns, lines[at + 1 :])
            if not damaged and len(rows) > 1 and _LOOP.search(text) and _WHICH.isdisjoint(columns):
                damaged = "its rows come in a loop, and which GPU each is of is not told"
                rows = [max(rows, key=_errors)]
            driver = dict(rows[0].pairs).get("driver_version", "") if rows else ""
            return listed(rows, driver, damaged)
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


def _errors(row: Block) -> int:
    return sum(_ERROR.search(value) is not None for _, value in row.pairs)


def _rows(columns: list[str], lines: list[str]) -> tuple[list[Block], str]:
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
        index = dict(pairs).get("index", "")
        number = int(index) if index.isdecimal() and len(index) < 4 else None  # noqa: PLR2004 - an index
        rows.append(Block("", pairs, number))
    return rows, damaged or ("" if rows else "it has no row")


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


def parse_dcgm(text: str) -> Listing | None:
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
    gpus = tuple(_told_by_dcgm(number, lines) for number, lines in sorted(found.items()))
    damaged = "" if gpus else "it names no GPU that failed: capture its whole output"
    return Listing(gpus, damaged=damaged)


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


def unsettled(gpus: Sequence[Gpu], dark: Collection[int]) -> str:
    """Name the first GPU whose dead links neither peers nor board judge; "" where there is none.

    `dark`: the GPUs of which the text says that no link is up, and lists none.
    """
    if usual_links(gpus):
        return ""
    lit = {gpu.name for gpu in gpus if gpu.links and all(link.up for link in gpu.links)}
    for gpu in gpus:
        up, down = up_links(gpu) or 0, [link.link for link in gpu.links or () if not link.up]
        if not down and gpu.index not in dark:
            continue
        judged = settled(gpu) is not None and (up > 0 or len(gpus) > 1 or must_be_up(gpu, gpus))
        unbridged = not up and gpu.name in lit  # a pair with a bridge and a third card are sold so
        if not judged and not unbridged:
            which = f"its NVLink {', '.join(map(str, down))}" if up else "no NVLink of it"
            state = "is down" if up else "is up"
            return (
                f"GPU {gpu.index}: {which} {state}, and whether that is so by design "
                "only its peers or its bridge tell"
            )
    return ""


_GPU: Final = re.compile(
    r"^\s*GPU ([0-9]{1,3}): (\S.*?)(?:(?<!\s)\s+)?(?:\(UUID: ([^)]*)(?s:\).*)?)?$"
)
_LINK: Final = re.compile(
    r"^\s*Link ([0-9]{1,3}): (?:<?(inactive)>?|([0-9.]+) GB/s)", re.IGNORECASE
)
_ERRORS: Final = re.compile(
    r"^\s*Link ([0-9]{1,3}): (Replay|Recovery|CRC)(?: \w+)? Errors: ([0-9]{1,15})\s*$",
    re.IGNORECASE,
)
_OTHER: Final = re.compile(
    r"^\s*Link \d{1,3}(?:, [\w ]+|: (?!replay\b|recovery\b|crc\b)[A-Za-z][\w /()-]*):\s*\S|"
    r"nvidia-smi|^[\s=_*#-]*$",
    re.IGNORECASE,
)
"""Lines of a listing that tell of something else: other counters, a command, a rule, nothing."""
_ALL_DOWN: Final = re.compile(r"all links are inactive", re.IGNORECASE)
_KINDS: Final = {"replay": "replays", "recovery": "recoveries", "crc": "crc"}
_MOST: Final = 64

_STATUS: Final = {
    "OK": "ok",
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "IOH topology not supported",
    "NS": "not supported",
    "DR": "disabled by regkey",
    "U": "unknown",
}


def parse_nvlink(text: str) -> Listing | None:
    """Read the listing; None where no GPU with links is in it."""
    gpus: list[Gpu] = []
    links: dict[int, dict[str, Any]] = {}
    dark: set[int] = set()
    seen = False
    strange: list[str] = []
    garbled = ""
    for line in text.splitlines():
        if match := _GPU.match(line):
            _close(gpus, links)
            links = {}
            gpus.append(_gpu(match))
        elif not gpus or _OTHER.search(line):
            continue
        elif _ALL_DOWN.search(line):
            dark.add(gpus[-1].index)
            gpus[-1] = _dark(gpus[-1])
            seen = True
        elif told := _told(line):
            at, what, value = told
            link = links.setdefault(at, {})
            # NVLink counts checksum errors of two kinds on two lines: the worse one is told.
            link[what] = max(value or 0, link.get(what, 0)) if what == "crc" else value
            seen = True
        else:
            strange.append(line.strip())
            continue
        garbled = garbled or next(iter(strange), "")
    _close(gpus, links)
    if not seen:
        return None
    # What follows the last line of it is no part of it, but for a line that was cut off.
    garbled = garbled or next((one for one in strange if _begun(one)), "")
    silent = [str(gpu.index) for gpu in gpus if gpu.links is None]
    damaged = f"it tells no links of GPU {', '.join(silent)}" if silent else ""
    if garbled and not damaged:
        damaged = f"a line of it cannot be read: {garbled[:40]!a}"
    return Listing(tuple(gpus), damaged=damaged or unsettled(gpus, dark))


def _gpu(match: re.Match[str]) -> Gpu:
    return Gpu(index=int(match[1]), uuid=(match[3] or "")[:96], name=match[2][:96], bus_id="")


def _told(line: str) -> tuple[int, str, int | None] | None:
    """(link, field, value) of one line, as `LinkErrors` names it."""
    if match := _LINK.match(line):
        return int(match[1]), "mbps", 0 if match[2] else _mbps(match[3])
    if match := _ERRORS.match(line):
        return int(match[1]), _KINDS[match[2].lower()], int(match[3])
    return None


def _begun(line: str) -> bool:
    return line.startswith("Link") or "Link".startswith(line)


def _dark(gpu: Gpu) -> Gpu:
    """A GPU of which no link is up: they are not listed, and its board may tell how many it has."""
    known = board(gpu.name)
    links = tuple(NvLink(link=at, up=False) for at in range(known.links if known else 0))
    return replace(gpu, links=links, health=GpuHealth(link_errors=()))


def _mbps(printed: str) -> int | None:
    try:
        return min(round(float(printed) * 1000), 10**9)
    except ValueError:
        return None


def _close(gpus: list[Gpu], links: dict[int, dict[str, Any]]) -> None:
    """Give the last GPU the links that were listed below it."""
    if not gpus or not links:
        return
    known = dict(sorted(links.items())[:_MOST])
    up = {at: one for at, one in known.items() if one.get("mbps") != 0}
    health = GpuHealth(link_errors=tuple(LinkErrors(link=at, **one) for at, one in up.items()))
    told = tuple(NvLink(link=at, up=at in up) for at in known)
    gpus[-1] = replace(gpus[-1], links=told, health=health)


def parse_p2p(text: str) -> Listing | None:
    """Read `topo -p2p r`; None where it is no such matrix."""
    rows: dict[int, list[str]] = {}
    header: list[str] = []
    for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
        words = line.split()
        if len(words) > 1 and all(re.fullmatch(r"GPU\d{1,3}", word) for word in words):
            header = words
        elif header and words and re.fullmatch(r"GPU\d{1,3}", words[0]):
            rows[int(words[0][3:])] = words[1:]
    codes = {code for row in rows.values() for code in row if code != "X"}
    if not header or not codes or not codes <= set(_STATUS):
        return None
    count = len(header)
    whole = sorted(rows) == list(range(count)) and all(len(row) == count for row in rows.values())
    pairs = tuple(
        GpuPair(a, b, "unknown", p2p_read=_worse(rows[a][b], rows[b][a]))
        for a in range(count)
        for b in range(a + 1, count)
        if len(rows.get(a, ())) > b and len(rows.get(b, ())) > a
    )
    gpus = tuple(Gpu(index=at, uuid="", name="", bus_id="") for at in range(count))
    return Listing(gpus, damaged="" if whole else "its matrix is not whole", pairs=pairs)


def _worse(there: str, back: str) -> str:
    """Of two directions the one that is refused."""
    return _STATUS.get(back if there == "OK" else there, "unknown")
