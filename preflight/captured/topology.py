"""ibnetdiscover as somebody pasted it, whole or with -p: the links of a fabric, from both ends."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from preflight.facts.basics import device_name
from preflight.facts.model import Nic, NicPort
from preflight.facts.rdma import ADAPTER, SWITCH
from preflight.offline.captured import Captured, bare_facts
from preflight.offline.plain import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND: Final = "ibnetdiscover"
_LANE_GBITS: Final = {
    "SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR10": 10.0, "FDR": 14.0, "EDR": 25.0, "HDR": 50.0,
    "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip
"""Of one lane, as ibstat rounds them."""

_ROW: Final = re.compile(
    r"^(CA|SW|RT)\s+(\d{1,5})\s+(\d{1,3})\s+0x([0-9a-fA-F]{1,16})\s+(\d{1,2})x\s*(\S+)\s*(.*)$"
)
_BOTH: Final = re.compile(
    r"^-\s+(?P<word>CA|SW|RT)\s+\d{1,5}\s+(?P<port>\d{1,3})\s+0x(?P<guid>[0-9a-fA-F]{1,16})\s+"
    r"\( '(?P<name>[^']*)' - '[^']*' \)\s*$"
)
_ALONE: Final = re.compile(r"^'([^']*)'\s*$")
_LIKE_ROW: Final = re.compile(r"^(?:CA?|SW?|RT?)(?:\s|$)")
_BLOCK: Final = re.compile(
    r'^(Switch|Ca|Rt)\s+\d{1,5}\s+"[SHR]-([0-9a-fA-F]{1,16})"\s*#\s*"([^"]*)"'
)
_LINK: Final = re.compile(
    r'^\[(\d{1,3})\](?:\([0-9a-fA-F]+\))?\s+"[SHR]-([0-9a-fA-F]{1,16})"\[(\d{1,3})\].*?'
    r"#.*\blid\b.*?\b(\d{1,2})x(\w+)"
)
_HALF: Final = re.compile(r"^(?:\[\d|Switch\b|Ca\b|Rt\b)")
_PLAIN: Final = re.compile(r"^\s*(?:#.*|(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)=.*|)$")
_IN_SWITCH: Final = re.compile(r"aggregation node", re.IGNORECASE)
"""A device inside a switch, which collectors often leave out."""


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


def read(text: str) -> Captured | None:
    """Read a fabric's ports; None for a text that is not of this tool."""
    lines = plain(text).expandtabs().splitlines()
    if any(_ROW.match(line) for line in lines):
        fabric = _of_rows(lines)
    elif any(_BLOCK.match(line) for line in lines):
        fabric = _of_blocks(lines)
    else:
        return None
    damaged = fabric.damaged or next(_half_told(fabric), "")
    facts = replace(bare_facts(), nics=tuple(_nics(fabric)))
    return Captured(kind=KIND, facts=facts, checks=("ib.port", "ib.rate"), damaged=damaged)


def _of_rows(lines: list[str]) -> _Fabric:
    """One line per port (-p); one without a second end has no link."""
    fabric = _Fabric()
    hosts: set[tuple[str, int]] = set()
    for line in lines:
        found = _ROW.match(line)
        rest = found.group(7) if found else ""
        both, alone = _BOTH.match(rest), _ALONE.match(rest)
        if found is None or not (both or alone):
            if _LIKE_ROW.match(line):
                fabric.damaged = fabric.damaged or f"half a line: {line[:40].strip()!a}"
            continue
        word, _, number, guid, lanes, speed, _ = found.groups()
        name = both["name"] if both else alone.group(1) if alone else ""
        at = (guid.lower(), int(number))
        port = _port(at[1], lanes, speed, linked=both is not None)
        fabric.device(at[0], word, name).ports[at[1]] = port
        if both:
            fabric.links[at] = both["guid"].lower(), int(both["port"])
            hosts |= {at, fabric.links[at]} if "CA" in (word, both["word"]) else set()
    lone = next((name for name, _ in sorted(hosts) if name not in fabric.devices), "")
    if lone and not fabric.damaged:
        fabric.damaged = f"it links to {lone}, and does not describe it"
    return fabric


def _of_blocks(lines: list[str]) -> _Fabric:
    """One block per device, one line per link; ports without a link are left out by the tool."""
    fabric, guid = _Fabric(), ""
    inside: set[str] = set()
    for line in lines:
        if block := _BLOCK.match(line):
            guid = _plain(block.group(2))
            fabric.device(guid, block.group(1), block.group(3))
        elif guid and (link := _LINK.match(line)):
            number, other, its, lanes, speed = link.groups()
            fabric.devices[guid].ports[int(number)] = _port(int(number), lanes, speed, linked=True)
            fabric.links[guid, int(number)] = _plain(other), int(its)
            if _IN_SWITCH.search(line):
                inside.add(_plain(other))
        elif not _PLAIN.match(line) or _HALF.match(line):
            fabric.damaged = fabric.damaged or f"a line cannot be read: {line[:40].strip()!a}"
    unknown = {other for other, _ in fabric.links.values()} - fabric.devices.keys() - inside
    mute = [each.name for each in fabric.devices.values() if not each.ports]
    if mute:
        fabric.damaged = fabric.damaged or f"{mute[0]} tells of no link"
    if unknown:
        fabric.damaged = fabric.damaged or f"it links to {min(unknown)}, and does not describe it"
    return fabric


def _half_told(fabric: _Fabric) -> Iterator[str]:
    """Links of no known rate, or that only one of two known ends tells of: something is cut."""
    for guid, number in fabric.links:
        if not fabric.devices[guid].ports[number].rate:
            yield f"{fabric.devices[guid].name} port {number} has no rate that there is"
    for (guid, number), (other, its) in fabric.links.items():
        if other in fabric.devices and fabric.links.get((other, its)) != (guid, number):
            one = fabric.devices[guid].name
            yield f"{fabric.devices[other].name} does not tell of its link to {one} port {number}"


def _nics(fabric: _Fabric) -> Iterator[Nic]:
    seen: set[str] = set()
    for guid, device in fabric.devices.items():
        name = f"{device.name} {guid}" if device.name in seen else device.name
        seen.add(device.name)
        ports = tuple(port for _, port in sorted(device.ports.items()))
        if ports:
            yield Nic(name=device_name(name), hca_type=device.kind, ports=ports)


def _port(number: int, lanes: str, speed: str, *, linked: bool) -> NicPort:
    each = _LANE_GBITS.get(speed.upper())
    return NicPort(
        port=number,
        state="4: ACTIVE" if linked else "1: DOWN",
        rate=f"{int(lanes) * each:g} Gb/sec ({lanes}X {speed.upper()})" if each else "",
        link_layer="InfiniBand",
    )


def _plain(guid: str) -> str:
    return guid.lower().lstrip("0")
