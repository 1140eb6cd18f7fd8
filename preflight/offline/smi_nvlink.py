"""`nvidia-smi nvlink -s`, `-e` and `topo -p2p`: which links are up, how fast, who reaches whom."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from preflight.facts.board_links import board
from preflight.facts.gpu_model import GpuHealth, LinkErrors
from preflight.facts.model import Gpu, GpuPair, NvLink
from preflight.facts.unsettled_links import unsettled

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


class Links(Struct, frozen=True):
    """The GPUs of an `nvlink` listing, and what is wrong with the text."""

    gpus: tuple[Gpu, ...]
    damaged: str = ""


def parse_nvlink(text: str) -> Links | None:
    """Read the listing; None where no GPU with links is in it."""
    gpus: list[Gpu] = []
    links: dict[int, dict[str, Any]] = {}
    dark: set[int] = set()
    seen = False
    strange: list[str] = []
    garbled = ""
    for line in text.splitlines():
        if match := _GPU.match(line):
            gpus = _closed(gpus, links)
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
    gpus = _closed(gpus, links)
    if not seen:
        return None
    # What follows the last line of it is no part of it, but for a line that was cut off.
    garbled = garbled or next((one for one in strange if _begun(one)), "")
    silent = [str(gpu.index) for gpu in gpus if gpu.links is None]
    damaged = f"it tells no links of GPU {', '.join(silent)}" if silent else ""
    if garbled and not damaged:
        damaged = f"a line of it cannot be read: {garbled[:40]!a}"
    return Links(tuple(gpus), damaged or unsettled(gpus, dark))


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


def _closed(gpus: list[Gpu], links: dict[int, dict[str, Any]]) -> list[Gpu]:
    """Give the last GPU the links that were listed below it."""
    if not gpus or not links:
        return gpus
    known = dict(sorted(links.items())[:_MOST])
    up = {at: one for at, one in known.items() if one.get("mbps") != 0}
    health = GpuHealth(link_errors=tuple(LinkErrors(link=at, **one) for at, one in up.items()))
    told = tuple(NvLink(link=at, up=at in up) for at in known)
    return [*gpus[:-1], replace(gpus[-1], links=told, health=health)]


def parse_p2p(text: str) -> tuple[tuple[Gpu, ...], tuple[GpuPair, ...], str] | None:
    """Read `topo -p2p r`: (GPUs, pairs, what is wrong); None where it is no such matrix."""
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
    return gpus, pairs, "" if whole else "its matrix is not whole"


def _worse(there: str, back: str) -> str:
    """Of two directions the one that is refused."""
    return _STATUS.get(back if there == "OK" else there, "unknown")
