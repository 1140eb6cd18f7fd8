"""Reads pasted topologies: ibnetdiscover, ibswinfo, `nvidia-smi topo -m` and `topo -p2p`.

The distance of NICs is not judged: the matrix has no PCI paths to compare with peers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from preflight.captured import Captured, captured, lines_of
from preflight.captured.smi_fields import Listing, table
from preflight.checks.gpu.connections import odd_cells
from preflight.checks.gpu.test_answers import LEFT_OF_A_MACHINE
from preflight.checks.rdma.ports import ADAPTER, SWITCH
from preflight.facts.basics import device_name
from preflight.facts.model import Driver, Gpu, GpuPair, Nic, NicPort, NvLink
from preflight.facts.node import DISTANCES
from preflight.facts.node_network import Switch, SwitchPart
from preflight.facts.topo_matrix import Topology, TopologyError, parse_topo, readable_lines

KIND: Final = "ibnetdiscover"
_LANE_GBITS: Final = {
    "SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR10": 10.0, "FDR": 14.0, "EDR": 25.0, "HDR": 50.0,
    "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip
"""Gb/s of one lane, rounded as in ibstat."""

_ROW: Final = re.compile(
    r"^(CA|SW|RT)\s+(\d{1,5})\s+(\d{1,3})\s+0x([0-9a-fA-F]{1,16})\s+(\d{1,2})x\s*(\S+)\s*(.*)$"
)
_TWO_ENDS: Final = re.compile(
    r"^-\s+(?P<word>CA|SW|RT)\s+\d{1,5}\s+(?P<port>\d{1,3})\s+0x(?P<guid>[0-9a-fA-F]{1,16})\s+"
    r"\( '(?P<name>[^']*)' - '[^']*' \)\s*$"
)
_ONE_END: Final = re.compile(r"^'([^']*)'\s*$")
_ROW_FRAGMENT: Final = re.compile(r"^(?:CA?|SW?|RT?)(?:[\sx\d]|$)|'(?:\s*\))?\s*$")
"""Begins or ends as a row does: two halves may stand on one line."""
_BLOCK: Final = re.compile(
    r'^(Switch|Ca|Rt)\s+\d{1,5}\s+"[SHR]-([0-9a-fA-F]{1,16})"\s*#\s*"([^"]*)"'
)
_LINK: Final = re.compile(
    r'^\[(\d{1,3})\](?:\([0-9a-fA-F]+\))?\s+"[SHR]-([0-9a-fA-F]{1,16})"\[(\d{1,3})\].*?'
    r"#.*\blid\b.*?\b(\d{1,2})x(\w+)"
)
_HALF_LINE: Final = re.compile(r"^(?:\[\d|Switch\b|Ca\b|Rt\b)")
_NOTE: Final = re.compile(r"^\s*(?:#.*|(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)=.*|)$")
_IN_SWITCH: Final = re.compile(r"aggregation node", re.IGNORECASE)
"""A device inside a switch, which collectors often omit."""


@dataclass
class _Device:
    name: str
    kind: str
    ports: dict[int, NicPort] = field(default_factory=dict)


@dataclass
class _Fabric:
    devices: dict[str, _Device] = field(default_factory=dict)
    links: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    damaged: str = ""

    def device(self, guid: str, word: str, name: str) -> _Device:
        kind = ADAPTER if word.upper() == "CA" else SWITCH
        return self.devices.setdefault(guid, _Device(name or guid, kind))


def read_ibnetdiscover(text: str) -> Captured | None:
    """Read a fabric's ports; None for a text of another tool."""
    lines = lines_of(text)
    if any(_ROW.match(line) for line in lines):
        fabric = _fabric_of_rows(lines)
    elif any(_BLOCK.match(line) for line in lines):
        fabric = _fabric_of_blocks(lines)
    else:
        return None
    damaged = fabric.damaged or next(_link_damage(fabric), "")
    return captured(KIND, ("ib.port", "ib.rate"), damaged, nics=tuple(_nics(fabric)))


def _fabric_of_rows(lines: list[str]) -> _Fabric:
    """One line per port (-p); a line without a second end has no link."""
    fabric = _Fabric()
    hosts: set[tuple[str, int]] = set()
    for line in lines:
        match = _ROW.match(line)
        ends = match.group(7) if match else ""
        two_ends, one_end = _TWO_ENDS.match(ends), _ONE_END.match(ends)
        if match is None or not (two_ends or one_end):
            if _ROW_FRAGMENT.search(line):
                fabric.damaged = fabric.damaged or f"half a line: {line[:40].strip()!a}"
            continue
        word, _, number, guid, lanes, speed, _ = match.groups()
        name = two_ends["name"] if two_ends else one_end.group(1) if one_end else ""
        at = (guid.lower(), int(number))
        port = _port(at[1], lanes, speed, linked=two_ends is not None)
        fabric.device(at[0], word, name).ports[at[1]] = port
        if two_ends:
            fabric.links[at] = two_ends["guid"].lower(), int(two_ends["port"])
            hosts |= {at, fabric.links[at]} if "CA" in (word, two_ends["word"]) else set()
    unlisted = next((name for name, _ in sorted(hosts) if name not in fabric.devices), "")
    if unlisted and not fabric.damaged:
        fabric.damaged = f"it has a link to {unlisted}, but not that device"
    return fabric


def _fabric_of_blocks(lines: list[str]) -> _Fabric:
    """One block per device, one line per link; the tool omits ports without a link."""
    fabric, guid = _Fabric(), ""
    internal: set[str] = set()
    for line in lines:
        if block := _BLOCK.match(line):
            guid = _bare_guid(block.group(2))
            fabric.device(guid, block.group(1), block.group(3))
        elif guid and (link := _LINK.match(line)):
            number, other, other_port, lanes, speed = link.groups()
            fabric.devices[guid].ports[int(number)] = _port(int(number), lanes, speed, linked=True)
            fabric.links[guid, int(number)] = _bare_guid(other), int(other_port)
            if _IN_SWITCH.search(line):
                internal.add(_bare_guid(other))
        elif not _NOTE.match(line) or _HALF_LINE.match(line):
            fabric.damaged = fabric.damaged or f"a line cannot be read: {line[:40].strip()!a}"
    unlisted = {other for other, _ in fabric.links.values()} - fabric.devices.keys() - internal
    unlinked = [device.name for device in fabric.devices.values() if not device.ports]
    if unlinked:
        fabric.damaged = fabric.damaged or f"{unlinked[0]} has no link"
    if unlisted:
        fabric.damaged = fabric.damaged or f"it has a link to {min(unlisted)}, but not that device"
    return fabric


def _link_damage(fabric: _Fabric) -> Iterator[str]:
    """Links of unknown rate, or listed by only one of two known ends: something is cut."""
    for guid, number in fabric.links:
        if not fabric.devices[guid].ports[number].rate:
            yield f"{fabric.devices[guid].name} port {number} has an unknown rate"
    for (guid, number), (other, other_port) in fabric.links.items():
        if other in fabric.devices and fabric.links.get((other, other_port)) != (guid, number):
            name = fabric.devices[guid].name
            yield f"{fabric.devices[other].name} does not list its link to {name} port {number}"


def _nics(fabric: _Fabric) -> Iterator[Nic]:
    names: set[str] = set()
    for guid, device in fabric.devices.items():
        name = f"{device.name} {guid}" if device.name in names else device.name
        names.add(device.name)
        ports = tuple(port for _, port in sorted(device.ports.items()))
        if ports:
            yield Nic(name=device_name(name), hca_type=device.kind, ports=ports)


def _port(number: int, lanes: str, speed: str, *, linked: bool) -> NicPort:
    lane_gbits = _LANE_GBITS.get(speed.upper())
    return NicPort(
        port=number,
        state="4: ACTIVE" if linked else "1: DOWN",
        rate=f"{int(lanes) * lane_gbits:g} Gb/sec ({lanes}X {speed.upper()})" if lane_gbits else "",
        link_layer="InfiniBand",
    )


def _bare_guid(guid: str) -> str:
    return guid.lower().lstrip("0")


IBSWINFO_KIND: Final = "ibswinfo"
_IBSWINFO_ROW: Final = re.compile(r"^(\s*)(\S[^|]{0,60}?)\s*\|\s*(.*?)\s*$")
_RULE: Final = re.compile(r"^\s*[-=]{5,}\s*$")
_SUPPLY: Final = re.compile(r"^(PSU\s?\d+)\b", re.IGNORECASE)
_FAN: Final = re.compile(r"^(fan\s?#?\d+)\b", re.IGNORECASE)
_NUMBERED_FAN: Final = re.compile(r"^fan\s?#?(\d{1,3})\b", re.IGNORECASE)
_STATUS: Final = re.compile(r"status$|power$", re.IGNORECASE)
_STATUS_VALUE: Final = re.compile(r"OK|ERROR")
_IBSWINFO_KEYS: Final = ("psid", "guid", "part number", "firmware version", "uptime (d-h:m:s)")
_REQUIRED_ROWS: Final = {
    "power supplies": re.compile(r"^PSU", re.IGNORECASE),
    "fans": re.compile(r"^fan", re.IGNORECASE),
    "temperature": re.compile(r"^temperature", re.IGNORECASE),
    "fan status": re.compile(r"^fan status$", re.IGNORECASE),
}


def read_ibswinfo(text: str) -> Captured | None:
    """Read one switch; None for a text of another tool."""
    lines = [line for line in lines_of(text) if line.strip()]
    matches = (_IBSWINFO_ROW.match(line) for line in lines)
    rows = [(match.group(1), match.group(2), match.group(3)) for match in matches if match]
    keys = [key for _, key, _ in rows]
    count = sum(key.lower() in _IBSWINFO_KEYS for key in keys)
    hardware = any(_SUPPLY.match(key) or _FAN.match(key) for key in keys)
    if not (count > 1 or (count and hardware)):
        return None
    top_level = [key for indent, key, _ in rows if not indent]
    missing = (part for part, row in _REQUIRED_ROWS.items() if not any(map(row.match, top_level)))
    damaged = _status_damage(rows) or next((f"it has no {part}" for part in missing), "")
    fans = [int(match[1]) for key in keys if (match := _NUMBERED_FAN.match(key))]
    if not damaged and fans != list(range(1, len(fans) + 1)):
        damaged = f"it lists {len(fans)} of the fans 1 to {max(fans)}"
    if not damaged and not (_RULE.match(lines[-1]) and _FAN.match(keys[-1])):
        damaged = "it lacks the tool's last line, below the fans"
    switch = Switch(_name(rows), tuple(_parts(rows)))
    return captured(IBSWINFO_KIND, ("ib.switch",), damaged, switches=(switch,))


def _status_damage(rows: list[tuple[str, str, str]]) -> str:
    """A status that belongs to nothing, or that one supply has and another lacks: a row is cut."""
    supplies: dict[str, set[str]] = {}
    for indent, key, value in rows:
        if _STATUS_VALUE.fullmatch(value) and not _STATUS.search(key):
            return f"a row says {value} of {key[:40]!a}"
        if supply := _SUPPLY.match(key):
            supplies[supply.group(1)] = set()
        elif indent and supplies and _STATUS.search(key):
            supplies[next(reversed(supplies))].add(key)
    statuses_of_all = set().union(*supplies.values())
    gaps = (
        f"{name} has no {min(statuses_of_all - statuses)}"
        for name, statuses in supplies.items()
        if statuses_of_all - statuses
    )
    return next(gaps, "")


def _parts(rows: list[tuple[str, str, str]]) -> list[SwitchPart]:
    """Parts with a status or a fan speed; an indented row belongs to the supply above it."""
    supply, parts = "", []
    for indent, key, value in rows:
        heading = _SUPPLY.match(key)
        supply = heading.group(1) if heading else supply if indent else ""
        name = f"{supply} {key}" if supply and not heading else key
        if _FAN.match(key):
            rpm = int(value) if re.fullmatch(r"[0-9]{1,6}", value) else None
            status = "" if rpm is not None else value
            parts.append(SwitchPart(name.partition(" (")[0][:128], status[:128], rpm))
        elif _STATUS.search(key):
            parts.append(SwitchPart(name[:128], value[:128]))
    return parts


def _name(rows: list[tuple[str, str, str]]) -> str:
    words = {key.lower(): value for _, key, value in rows}
    label = words.get("node description") or words.get("guid") or words.get("serial number")
    return f"switch {label or 'without a name'}"[:128]


TOPOLOGY_KIND: Final = "nvidia-smi topo -m"
_CHECKS: Final = ("gpu.topology",)
_MATRIX: Final = re.compile(
    r"^(?>.*?\bGPU0\b).*\b(?:GPU1|NIC0|mlx\w+|CPU Affinity)\b|nvidia-smi topo -m"
)
_FEWEST_ON_A_SWITCH: Final = 3
"""Fewer GPUs are connected directly."""


def read(text: str) -> Captured | None:
    """Read a matrix as the GPUs of a node; None without one."""
    if not any(_MATRIX.search(" ".join(line)) for line in readable_lines(text)):
        return None
    text = next((block for block in _blocks(text) if _p2p_listing(block) is None), "")
    if not text:
        return None
    try:
        printed = parse_topo(text)
        codes = {
            (a, b): printed.link(printed.gpus[a], printed.gpus[b])
            for a in range(len(printed.gpus))
            for b in range(a + 1, len(printed.gpus))
        }
    except TopologyError as error:
        return captured(TOPOLOGY_KIND, _CHECKS, str(error))
    return captured(
        TOPOLOGY_KIND,
        (*_CHECKS, *["gpu.count"] * (len(printed.gpus) in LEFT_OF_A_MACHINE)),
        driver=Driver("answered"),
        gpus=_gpus(printed, codes),
        gpu_pairs=tuple(
            GpuPair(a=a, b=b, ancestor=next((one for one in DISTANCES if one == code), "unknown"))
            for (a, b), code in codes.items()
        ),
        nics=tuple(Nic(device_name(printed.nic_device(name) or name)) for name in printed.nics),
        topo_text=text,
    )


def _gpus(printed: Topology, codes: Mapping[tuple[int, int], str]) -> tuple[Gpu, ...]:
    """Give every GPU the NVLinks of its row; they go to a switch if the counts fit one."""
    links = {pair: _nvlinks(code) for pair, code in codes.items()}
    count = len(printed.gpus)
    most = [max((n for pair, n in links.items() if at in pair), default=0) for at in range(count)]
    switched = count >= _FEWEST_ON_A_SWITCH and all(
        n == min(most[a], most[b]) for (a, b), n in links.items()
    )
    # An impossible cell is damage: sums over the cells would blame a GPU.
    damaged = not switched and any(odd_cells(printed))
    gpus = []
    for at, name in enumerate(printed.gpus):
        if switched:
            ends = [""] * most[at]
        else:
            ends = [
                printed.gpus[a + b - at]
                for (a, b), n in links.items()
                if at in (a, b)
                for _ in range(n)
            ]
        links_up = tuple(
            NvLink(link=link, up=True, remote=remote, remote_kind="gpu" if remote else "switch")
            for link, remote in enumerate(ends)
        )
        nvlinks = None if damaged else links_up
        gpus.append(Gpu(index=at, uuid="", name="", bus_id=name, links=nvlinks))
    return tuple(gpus)


def _nvlinks(code: str) -> int:
    """Count the links of "NV18"; 0 for every other connection."""
    return int(code[2:]) if re.fullmatch(r"NV[0-9]{1,2}", code) else 0


_HEADER: Final = re.compile(
    r"^(?:\x1b\[[0-9;]*+m|[ \t])*+GPU0[ \t]++(?:GPU1|NIC0|mlx|CPU)", re.MULTILINE
)


def _blocks(text: str) -> list[str]:
    """Each matrix of a text with several, and what follows it; otherwise the text."""
    starts = [match.start() for match in _HEADER.finditer(text)]
    if len(starts) < 2:  # noqa: PLR2004  one is the text itself
        return [text]
    return [text[start:end] for start, end in pairwise([*starts, len(text)])]


def parse_p2p(text: str) -> Listing | None:
    """Read `topo -p2p r`; None without such a matrix."""
    return next(filter(None, map(_p2p_listing, _blocks(text))), None)


def _p2p_listing(text: str) -> Listing | None:
    rows: dict[int, list[str]] = {}
    header: list[str] = []
    for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
        words = line.split()
        if len(words) > 1 and all(re.fullmatch(r"GPU\d{1,3}", word) for word in words):
            header = words
        elif header and words and re.fullmatch(r"GPU\d{1,3}", words[0]):
            rows[int(words[0][3:])] = words[1:]
    codes = {code for row in rows.values() for code in row if code != "X"}
    if not header or not codes or not codes <= table()["p2p"].keys():
        return None
    count = len(header)
    whole = sorted(rows) == list(range(count)) and all(len(row) == count for row in rows.values())
    pairs = tuple(
        GpuPair(a, b, "unknown", p2p_read=_refused_direction(rows[a][b], rows[b][a]))
        for a in range(count)
        for b in range(a + 1, count)
        if len(rows.get(a, ())) > b and len(rows.get(b, ())) > a
    )
    gpus = tuple(Gpu(index=at, uuid="", name="", bus_id="") for at in range(count))
    return Listing(gpus, damaged="" if whole else "its matrix is incomplete", pairs=pairs)


def _refused_direction(forward: str, backward: str) -> str:
    """The refused one of two directions."""
    status: str = table()["p2p"].get(backward if forward == "OK" else forward, "unknown")
    return status
