"""ibstat, ibstatus and `rdma link` as somebody pasted them: which RDMA ports were up, and how fast.

All three tell of one port after another. Tools indent differently, tickets lose tabs, and logs put
prompts between: what counts are the words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from preflight.facts.basics import device_name
from preflight.facts.model import Nic, NicPort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Kind = str

_LONGEST: Final = 512
_CA: Final = re.compile(r"^\W*CA(:?) '([!-&(-~]{1,64})'")
"""With a colon: `ibstat CA PORT` tells of that port alone."""
_HALF: Final = re.compile(r"C|CA:?|CA:? '?[^']*|link \S*|Infiniband device.{0,60}(?<!status:)")
_CA_PORT: Final = re.compile(r"^\s*Port ([0-9]{1,3}):\s*$")
_STATUS: Final = re.compile(r"[Ii]nfiniband device '([^']{1,64})' port ([0-9]{1,3}) status")
_LINK: Final = re.compile(
    r"^\W*(?:link\s+|[0-9]+/[0-9]+:\s*)([A-Za-z][\w.-]*)/([0-9]{1,3}):?(?:\s|$)"
)
_LINK_STATE: Final = re.compile(r"\bstate\s+(\w+)\s+physical_state\s+(\w+)(?:\s+netdev\s+(\S+))?")
_HOST: Final = re.compile(r"^\s*(?:\S{1,64}@)?([A-Za-z][\w.-]{0,63})(?:[:~$#]\S*)?\s*$")
_PAIR: Final = re.compile(r"^\s*([A-Za-z][A-Za-z _]{1,24}?)\s*:\s*(.*?)\s*$")
_ERROR: Final = re.compile(
    r"^[^\S\n]*(?:ibpanic|ibwarn|ibstat|ibstatus|perfquery|rdma)\b.*?:|"
    r"sys files not found|can't (?:get|open|find) .{0,200}(?:CA|port|umad)",
    re.MULTILINE | re.IGNORECASE,
)
_FAILED: Final = re.compile(
    r"^[ \t]*(?:ibpanic|ibwarn|ibstat|ibstatus|rdma):[ \t]+\S.*|^.*sys files not found.*",
    re.MULTILINE | re.IGNORECASE,
)
"""What a tool says instead of the next device."""
_LAYERS: Final = ("infiniband", "ethernet", "iwarp", "unspecified", "unknown")
_STATES: Final = re.compile(r"(?:[0-9]:\s*)?(?:NOP|DOWN|INIT\w*|ARMED|ACTIVE\w*)", re.IGNORECASE)


class Printed(Struct, frozen=True):
    """The devices that a text tells of; `damaged` says what of it is cut off or garbled."""

    kind: Kind
    nics: tuple[Nic, ...] | None
    damaged: str = ""
    one_port: bool = False
    """Whether one port was asked for: what the others of the node are, it does not say."""


@dataclass
class _Device:
    name: str
    one_port: bool = False
    words: dict[str, str] = field(default_factory=dict)
    ports: dict[int, dict[str, str]] = field(default_factory=dict)


def parse(text: str) -> Printed | None:
    """Read the first kind that the text shows; None where it shows none."""
    lines = text.splitlines()
    readers: tuple[tuple[Kind, Callable[[list[str]], list[_Device]]], ...] = (
        ("ibstat", _ibstat),
        ("ibstatus", _ibstatus),
        ("rdma link", _rdma_link),
    )
    for kind, read in readers:
        devices = read(lines)
        if devices:
            damaged = _cut_or_failed(text) or next(_damages(kind, devices), "")
            nics = tuple(_nic(device) for device in devices)
            return Printed(kind, nics, damaged, any(device.one_port for device in devices))
    error = _ERROR.search(text)
    if error is None or len(lines) > 20:  # noqa: PLR2004 (an error is short; a log is something else)
        return None
    said = text[error.start() :].strip().splitlines()[0][:120]
    return Printed("ibstat", None, f"it holds an error and no port: {said}")


def _cut_or_failed(text: str) -> str:
    if _HALF.fullmatch(text.rstrip().rpartition("\n")[2]):
        return "it ends within the heading of a device"
    failed = _FAILED.search(text)
    return f"it holds an error: {failed.group().strip()[:120]}" if failed else ""


def _ibstat(lines: list[str]) -> list[_Device]:
    devices: list[_Device] = []
    words: dict[str, str] = {}
    for line in lines:
        if found := _CA.match(line):
            devices.append(_Device(found.group(2), one_port=bool(found.group(1))))
            words = devices[-1].words
        elif devices and (found := _CA_PORT.match(line)):
            words = devices[-1].ports.setdefault(int(found.group(1)), {})
        elif devices and (found := _PAIR.match(line)):
            words.setdefault(_key(found.group(1)), found.group(2)[:_LONGEST])
    return devices


def _ibstatus(lines: list[str]) -> list[_Device]:
    devices: dict[str, _Device] = {}
    words: dict[str, str] | None = None
    for line in lines:
        if found := _STATUS.search(line):
            device = devices.setdefault(found.group(1), _Device(found.group(1)))
            words = device.ports.setdefault(int(found.group(2)), {})
        elif words is not None and (found := _PAIR.match(line)):
            words.setdefault(_key(found.group(1)), found.group(2)[:_LONGEST])
    return list(devices.values())


def _rdma_link(lines: list[str]) -> list[_Device]:
    """Listings of several hosts may be in one text, each under its name."""
    devices: dict[str, _Device] = {}
    host = ""
    for line in lines:
        found = _LINK.match(line)
        if found is None:
            named = _HOST.match(line)
            host = named.group(1) if named else host
            continue
        name = found.group(1)
        if name in devices and int(found.group(2)) in devices[name].ports:
            name = f"{host or 'again'} {name}"[:_LONGEST]
        device = devices.setdefault(name, _Device(name))
        state = _LINK_STATE.search(line, found.end() - 1)
        words = device.ports.setdefault(int(found.group(2)), {})
        if state:
            words |= {"state": state.group(1), "physical state": state.group(2)}
            words["netdev"] = (state.group(3) or "")[:_LONGEST]
    return list(devices.values())


def _nic(device: _Device) -> Nic:
    ports = tuple(_port(number, words) for number, words in sorted(device.ports.items()))
    firmware = device.words.get("firmware version", "")
    return Nic(
        name=device_name(device.name),
        ports=ports,
        firmware=firmware if any(map(str.isdigit, firmware)) else "",
        hca_type=device.words.get("ca type", ""),
    )


def _port(number: int, words: dict[str, str]) -> NicPort:
    state = words.get("state", "")
    return NicPort(
        port=number,
        state=state if _STATES.fullmatch(state) else "",
        phys_state=words.get("physical state", words.get("phys state", "")),
        rate=words.get("rate", ""),
        link_layer=words.get("link layer", ""),
        netdev=device_name(words.get("netdev", "")),
    )


def _damages(kind: Kind, devices: list[_Device]) -> Iterator[str]:
    """What every whole output of that kind has."""
    names = [device.name for device in devices]
    yield from (f"{name} comes twice in it" for name in names if names.count(name) > 1)
    wanted = ["state", "physical state", "rate", "link layer"] if kind != "rdma link" else ["state"]
    for device in devices:
        told = device.words.get("number of ports", "")
        if kind == "ibstat" and (
            not device.ports or (told.isdecimal() and int(told) > len(device.ports))
        ):
            yield f"ports of {device.name} are missing"
        for number, words in sorted(device.ports.items()):
            both = {**words, "physical state": words.get("phys state", "")} | words
            lacking = [word for word in wanted if not both.get(word)]
            if lacking:
                yield f"{device.name} port {number} has no {lacking[0]}"
            elif words.get("link layer", _LAYERS[0]).lower() not in _LAYERS:
                yield f"{device.name} port {number} has half a link layer: {words['link layer']!a}"
            elif not _STATES.fullmatch(words["state"]):
                yield f"{device.name} port {number} has no state that there is: {words['state']!a}"


def _key(text: str) -> str:
    return " ".join(text.lower().replace("_", " ").split())
