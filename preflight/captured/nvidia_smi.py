"""Reads every output of nvidia-smi about GPUs, for the checks of live nodes.

A text that is cut off, or an error message, proves no GPU healthy: `damaged` says so, also for what
one GPU's text cannot show without its node's group and inventory. If a board is sold with and
without a bridge, its NVLinks alone give no result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from preflight.captured import Captured, captured
from preflight.captured.smi_fields import Listing, bus, table
from preflight.captured.smi_query import SELECTS_GPUS, parse_csv, parse_query, parse_xml
from preflight.captured.smi_table import only_processes, parse_table
from preflight.captured.topology import parse_p2p
from preflight.checks.gpu.connections import usual_links
from preflight.checks.gpu.readings import reading
from preflight.checks.gpu.test_answers import duplicate_ids, left_of_a_machine
from preflight.core.statistics import grouped
from preflight.facts.boards import board, fully_linked_board, links_must_be_up, up_links
from preflight.facts.gpu import GpuHealth, LinkErrors
from preflight.facts.model import Driver, Gpu, NvLink

_BAD_INFOROM: Final = re.compile(r"infoROM is corrupted at gpu\s+([0-9a-fA-F:.]+)", re.IGNORECASE)
_BUS: Final = r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"
_LOST_GPU: Final = (
    re.compile(
        rf"determine the device handle for\s+GPU\s*+(\d*):?\s*+{_BUS}:\s*+(.+)", re.IGNORECASE
    ),
    re.compile(
        r"determine the device handle for\s+GPU\s*(?:(\d{1,3}):?\s+)?(\S+):\s++(.+)", re.IGNORECASE
    ),  # an invalid address: an old driver's, or a typed one
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


def corrupted_inforoms(text: str) -> tuple[str, ...]:
    """Bus ids of the GPUs for which nvidia-smi reports a corrupted InfoROM."""
    return tuple(bus(match.strip(".:")) or match for match in _BAD_INFOROM.findall(text))


def lost_gpus(text: str) -> tuple[str, ...]:
    """GPUs that could not be opened; each text begins with "GPU N", if N is known."""
    matches: dict[int, re.Match[str]] = {}
    for match in (match for pattern in _LOST_GPU for match in pattern.finditer(text)):
        matches.setdefault(match.start(), match)
    texts = []
    for index, where, why in (match.groups() for match in matches.values()):
        place = f"{bus(where) or where} " if where else ""
        texts.append(f"GPU {index or '?'}: {place}{why.strip()}"[:200])
    return tuple(dict.fromkeys(texts))


def failure(text: str) -> str:
    """The error that nvidia-smi printed instead of an answer; "" without one."""
    match = _FAILED.search(text)
    return match[0].strip()[:300] if match else ""


def parse_dcgm(text: str) -> Listing | None:
    """Read the failures of `dcgmi diag`, by GPU; None for another output."""
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
    by_gpu = grouped(
        (int(number), line)
        for line in joined
        if re.match(r"(?i)(?:error|warning)s?:|.*\bfail", line)
        for number in _DCGM_GPU.findall(line) or ["0"]
    )
    gpus = tuple(_gpu_of_dcgm(number, lines) for number, lines in sorted(by_gpu.items()))
    damaged = "" if gpus else "it names no GPU that failed: capture its whole output"
    return Listing(gpus, damaged=damaged)


def _gpu_of_dcgm(number: int, lines: list[str]) -> Gpu:
    text = " ".join(lines).lower()
    pending = "remapping" in text and "pending" in text
    uncorrected = "uncorrectable" in text or "double bit" in text or "dbe" in text
    plain = pending or uncorrected
    health = GpuHealth(
        remap_pending=True if pending else None,
        remap_failed=True if "remap" in text and "fail" in text else None,
        uncorrected_seen=True if uncorrected else None,
        errors=() if plain else tuple(f"dcgmi diag: {line}"[:300] for line in lines[:8]),
    )
    return Gpu(index=number, uuid="", name="", bus_id="", health=health)


def unexplained_down_links(gpus: Sequence[Gpu], down_gpus: Collection[int]) -> str:
    """Name the first GPU whose down links neither peers nor board explain; "" without one.

    `down_gpus`: the GPUs for which the text says that no link is up, and lists none.
    """
    if usual_links(gpus):
        return ""
    fully_up = {gpu.name for gpu in gpus if gpu.links and all(link.up for link in gpu.links)}
    for gpu in gpus:
        up, down = up_links(gpu) or 0, [link.link for link in gpu.links or () if not link.up]
        if not down and gpu.index not in down_gpus:
            continue
        several = up > 0 or len(gpus) > 1 or links_must_be_up(gpu, gpus)
        board_explains = fully_linked_board(gpu) is not None and several
        # A bridged pair with a third card is a usual machine.
        unbridged = not up and gpu.name in fully_up
        if not board_explains and not unbridged:
            links = f"its NVLink {', '.join(map(str, down))}" if up else "no NVLink of it"
            state = "is down" if up else "is up"
            return (
                f"GPU {gpu.index}: {links} {state}; only its peers or its bridge show whether that "
                "is by design"
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
_OTHER_LINE: Final = re.compile(
    r"^\s*Link \d{1,3}(?:, [\w ]+|: (?!replay\b|recovery\b|crc\b)[A-Za-z][\w /()-]*):\s*\S|"
    r"nvidia-smi|^[\s=_*#-]*$",
    re.IGNORECASE,
)
"""Other lines of a listing: other counters, a command, a rule, blank lines."""
_ALL_DOWN: Final = re.compile(r"all links are inactive", re.IGNORECASE)
_ERROR_FIELDS: Final = {"replay": "replays", "recovery": "recoveries", "crc": "crc"}
_MOST_LINKS: Final = 64


def parse_nvlink(text: str) -> Listing | None:
    """Read the listing; None if it has no GPU with links."""
    gpus: list[Gpu] = []
    links: dict[int, dict[str, Any]] = {}
    down_gpus: set[int] = set()
    has_links = False
    unread_lines: list[str] = []
    garbled = ""
    for line in text.splitlines():
        if not gpus and _link_reading(line):
            garbled = line.strip()
        if match := _GPU.match(line):
            _add_links(gpus, links)
            links = {}
            gpus.append(_gpu(match))
        elif not gpus or _OTHER_LINE.search(line):
            continue
        elif _ALL_DOWN.search(line):
            down_gpus.add(gpus[-1].index)
            gpus[-1] = _with_links_down(gpus[-1])
            has_links = True
        elif link_reading := _link_reading(line):
            at, field, value = link_reading
            link = links.setdefault(at, {})
            # NVLink counts two kinds of checksum errors on two lines: the larger count is kept.
            link[field] = max(value or 0, link.get(field, 0)) if field == "crc" else value
            has_links = True
        else:
            unread_lines.append(line.strip())
            continue
        garbled = garbled or next(iter(unread_lines), "")
    _add_links(gpus, links)
    if not has_links:
        return None
    # What follows its last line is not part of it, except a line that was cut off.
    garbled = garbled or next((line for line in unread_lines if _is_half_line(line)), "")
    unlisted = [str(gpu.index) for gpu in gpus if gpu.links is None]
    damaged = f"it lists no links of GPU {', '.join(unlisted)}" if unlisted else ""
    if garbled and not damaged:
        damaged = f"a line of it cannot be read: {garbled[:40]!a}"
    damaged = damaged or next(filter(None, map(_missing_links, gpus)), "")
    doubt = "" if damaged else unexplained_down_links(gpus, down_gpus)
    return Listing(tuple(gpus), damaged=damaged or doubt, advice=_GIVE_PEERS if doubt else "")


_GIVE_PEERS: Final = "give nvidia-smi topo -m, or the text of a second such machine, beside it"


def parse_list(text: str) -> Listing | None:
    """Read `nvidia-smi -L`: one line per GPU that can be opened; None where there is no such line.

    >>> parse_list("GPU 0: NVIDIA L4 (UUID: GPU-1234)").gpus[0].name
    'NVIDIA L4'
    """
    matches = [match for line in text.splitlines() if (match := _GPU.match(line))]
    gpus = tuple(_gpu(match) for match in matches if match[3])
    return Listing(gpus) if gpus else None


def _missing_links(gpu: Gpu) -> str:
    """Say that links are missing in the list of a board of which each is printed, up or down."""
    spec, listed = board(gpu.name), len(gpu.links or ())
    if spec is None or not 0 < listed < spec.links:
        return ""
    return f"it lists {listed} of the {spec.links} NVLinks of GPU {gpu.index}"


def _gpu(match: re.Match[str]) -> Gpu:
    return Gpu(index=int(match[1]), uuid=(match[3] or "")[:96], name=match[2][:96], bus_id="")


def _link_reading(line: str) -> tuple[int, str, int | None] | None:
    """(link, field, value) of one line, by the fields of `LinkErrors`."""
    if match := _LINK.match(line):
        return int(match[1]), "mbps", 0 if match[2] else _mbps(match[3])
    if match := _ERRORS.match(line):
        return int(match[1]), _ERROR_FIELDS[match[2].lower()], int(match[3])
    return None


def _is_half_line(line: str) -> bool:
    return line.startswith("Link") or "Link".startswith(line) or bool(_HALF_GPU.fullmatch(line))


_HALF_GPU: Final = re.compile(r"G|GP|GPU(?: [0-9]{0,3}:?)?")


def _with_links_down(gpu: Gpu) -> Gpu:
    """A GPU without any link up: none is listed, and its board may show how many it has."""
    spec = board(gpu.name)
    links = tuple(NvLink(link=at, up=False) for at in range(spec.links if spec else 0))
    return replace(gpu, links=links, health=GpuHealth(link_errors=()))


def _mbps(printed: str) -> int | None:
    try:
        return min(round(float(printed) * 1000), 10**9)
    except ValueError:
        return None


def _add_links(gpus: list[Gpu], links: dict[int, dict[str, Any]]) -> None:
    """Add to the last GPU the links listed below it."""
    if not gpus or not links:
        return
    readings = dict(sorted(links.items())[:_MOST_LINKS])
    up = {at: row for at, row in readings.items() if row.get("mbps") != 0}
    health = GpuHealth(link_errors=tuple(LinkErrors(link=at, **row) for at, row in up.items()))
    states = tuple(NvLink(link=at, up=at in up) for at in readings)
    gpus[-1] = replace(gpus[-1], links=states, health=health)


_PARSERS: Final[tuple[tuple[str, Callable[[str], Listing | None]], ...]] = (
    ("nvidia-smi -q -x", parse_xml),
    ("nvidia-smi -q", parse_query),
    ("nvidia-smi", parse_table),
    ("nvidia-smi --query-gpu --format=csv", parse_csv),
    ("dcgmi diag", parse_dcgm),
    ("nvidia-smi nvlink -s / -e", parse_nvlink),
    ("nvidia-smi topo -p2p", parse_p2p),
)
"""The most certain first."""

KINDS: Final = (*(_PARSERS[at][0] for at in (2, 1, 0, 3, 5, 6, 4)), "nvidia-smi -L")
"""The most used first."""

_PASS_UNREAD: Final = frozenset(("gpu.count", "gpu.topology"))
"""Checks that would pass for GPUs that are listed without any reading."""


def read(text: str) -> Iterator[Captured]:
    """Read all outputs of nvidia-smi and dcgmi diag in a text."""
    lost, error, selected = lost_gpus(text), failure(text), SELECTS_GPUS.search(text) is not None
    outputs = [
        _captured(kind, listing) for kind, parse in _PARSERS if (listing := parse(text)) is not None
    ]
    if not outputs and (others := parse_list(text)) is not None:
        outputs = [_with_check(_captured("nvidia-smi -L", others), "gpu.count")]
    if not outputs and lost and "NVRM" not in text:  # the kernel's lines belong to its log
        empty = Listing((), damaged="it lists no GPU", advice=_AFTER_REPAIR)
        outputs = [_captured("nvidia-smi", empty)]
    if not outputs and error:  # it shows the driver's state
        driver = Driver("error", error=error)
        advice = "look for NVRM in dmesg; reload the driver or reboot, then recheck"
        yield captured("nvidia-smi", ("host.driver_hung",), error, advice=advice, driver=driver)
    elif not outputs and only_processes(text):
        yield _captured("nvidia-smi", Listing((), damaged="only its table of processes is there"))
    for output in outputs:
        completed = _with_lost(_with_inforoms(output, corrupted_inforoms(text)), lost)
        missing = "" if lost or selected else _missing_gpu(output)
        yield replace(completed, damaged=output.damaged or error or missing)


def _missing_gpu(output: Captured) -> str:
    """Name a GPU that a list of GPUs has left out; none where one was asked for."""
    numbers = sorted(gpu.index for gpu in output.facts.gpus or ())
    numbered = output.kind in ("nvidia-smi", "nvidia-smi nvlink -s / -e", "nvidia-smi -L")
    missing = set(range(max(numbers, default=0))) - set(numbers)
    return f"GPU {min(missing)} is not in it" if numbered and len(numbers) > 1 and missing else ""


def _captured(kind: str, listing: Listing) -> Captured:
    gpus = tuple(_with_all_lacks(gpu) for gpu in listing.gpus)
    readable = _checks(gpus, {doubt.field for doubt in listing.doubts})
    checks = readable if listing.pairs is None else ("gpu.topology",)
    doubt = "" if listing.damaged else next((doubt.why for doubt in listing.doubts), "")
    if kind != "dcgmi diag" and left_of_a_machine(listing.gpus):
        checks = tuple(dict.fromkeys((*checks, "gpu.count")))  # dcgmi names only GPUs that fail
    return captured(
        kind,
        checks,
        listing.damaged or doubt or duplicate_ids(listing.gpus),
        advice=_ASK_MORE if doubt else listing.advice,
        driver=Driver("answered", version=listing.driver),
        gpus=gpus,
        gpu_pairs=listing.pairs,
    )


_ASK_MORE: Final = "capture nvidia-smi -q as well, which prints each reading in full"
_AFTER_REPAIR: Final = "capture nvidia-smi -q once the GPUs answer"


def _checks(gpus: Sequence[Gpu], doubted: Collection[str]) -> tuple[str, ...]:
    """The checks for which the text has readings; all of them if it has none."""
    all_checks = (*table()["needs"], "gpu.count")
    if not gpus:
        return all_checks
    readable = [
        check
        for check, fields in table()["needs"].items()
        if any(_has_reading(gpu, fields) for gpu in gpus) or not set(fields).isdisjoint(doubted)
    ]
    failing = any(gpu.health is not None and gpu.health.errors for gpu in gpus)
    checks = tuple(dict.fromkeys((*readable, *["gpu.readings"] * failing)))
    return checks or tuple(check for check in all_checks if check not in _PASS_UNREAD)


def _with_all_lacks(gpu: Gpu) -> Gpu:
    """Mark the other forms of an N/A reading, which old drivers do not print, as lacking."""
    health = gpu.health
    if health is None:
        return gpu
    lacks = [
        name
        for fields in table()["needs"].values()
        if set(fields) & set(health.lacks) and all(reading(gpu, name) is None for name in fields)
        for name in fields
        if name not in (*health.lacks, *health.denied, *_failed_fields(health))
    ]
    return replace(gpu, health=replace(health, lacks=(*health.lacks, *lacks))) if lacks else gpu


def _failed_fields(health: GpuHealth) -> set[str]:
    return {line.partition(":")[0] for line in health.errors}


def _has_reading(gpu: Gpu, fields: Sequence[str]) -> bool:
    health = gpu.health or GpuHealth()
    refused = {*health.lacks, *health.denied, *_failed_fields(health)}
    return any(reading(gpu, name) not in (None, "") or name in refused for name in fields)


def _with_inforoms(output: Captured, bad: Sequence[str]) -> Captured:
    if not bad:
        return output
    gpus = list(output.facts.gpus or ())
    bus_ids, corrupted = {gpu.bus_id for gpu in gpus}, frozenset(bad)
    gpus += [
        Gpu(index=len(gpus) + more, uuid="", name="", bus_id=name, health=GpuHealth())
        for more, name in enumerate(name for name in bad if name not in bus_ids)
    ]
    marked = tuple(
        replace(gpu, health=replace(gpu.health or GpuHealth(), inforom_valid=False))
        if gpu.bus_id in corrupted
        else gpu
        for gpu in gpus
    )
    return _with_check(output, "gpu.inforom", gpus=marked)


def _with_lost(output: Captured, lost: Sequence[str]) -> Captured:
    if not lost:
        return output
    listed = len(output.facts.gpus or ())
    counted = listed + len(lost) if listed else None  # else it says nothing of the others
    driver = replace(output.facts.driver, counted=counted)
    problems = (*output.facts.problems, *lost)
    return _with_check(output, "gpu.count", driver=driver, problems=problems)


def _with_check(output: Captured, check: str, **sections: Any) -> Captured:
    checks = tuple(dict.fromkeys((*output.checks, check)))
    return replace(output, facts=replace(output.facts, **sections), checks=checks)
