"""Reads RDMA ports from ibstat, ibstatus, `rdma link`, perfquery, or a tree of /sys.

All tools list one port after another. Indents differ, tickets lose tabs, and logs put prompts
between: only the words count.
"""

from __future__ import annotations

import re
from collections import Counter as Counted
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from preflight.captured import Captured, captured, json_of, short_error
from preflight.core.text import natural, printable_lines, whole
from preflight.facts.basics import device_name
from preflight.facts.model import Nic, NicPort
from preflight.facts.node_network import Counter, Counters, Interface, Network

_COUNTERS_HEADING: Final = re.compile(
    r"^#\s*(Port[\w ]*?) counters:\s*Lid (\d{1,5}) port (\d{1,3})", re.IGNORECASE
)
_STANDARD_HEADING: Final = re.compile(r"^#\s*Port (?:extended )?counters:", re.IGNORECASE)
_FIRST: Final = "port_select"
_LAST: Final = "vl15_dropped"
"""The first and last standard error counters; traffic follows."""
_LINE: Final = re.compile(r"^\s*([A-Za-z][A-Za-z0-9]{3,40}):\.*\s*(\S*)\s*$")
_WORDS: Final = re.compile(r"VL15|QP1|[A-Z]{2,}(?![a-z])|[A-Z][a-z]*|[0-9]+")
_ERRORS: Final = re.compile(r"error|discard|downed|recovery|dropped|overrun|integrity")
_LARGEST: Final = 2**53
_COUNT_LIMIT: Final = 2**64


def parse_perfquery(text: str) -> Captured | None:
    """Read the counters of every port with a heading; None without any heading.

    Each port is a separate device: perfquery knows LIDs and no names.
    """
    blocks: list[tuple[str, int, dict[str, int]]] = []
    damaged = ""
    standard: list[dict[str, int]] = []
    for line in text.splitlines():
        if match := _COUNTERS_HEADING.search(line):
            blocks.append((f"lid {match.group(2)}", int(match.group(3)), {}))
            standard += [blocks[-1][2]] * bool(_STANDARD_HEADING.search(line))
        elif blocks and (pair := _LINE.match(line)):
            name, value = sysfs_counter(pair.group(1)), pair.group(2)
            if (number := whole(value, _COUNT_LIMIT)) is not None:
                blocks[-1][2][name] = min(number, _LARGEST)
            elif not re.fullmatch(r"0x[0-9a-fA-F]+", value):
                damaged = damaged or f"{pair.group(1)} of {blocks[-1][0]} has no value"
        elif blocks and line.strip() and not line.startswith("#"):
            damaged = damaged or f"a line of {blocks[-1][0]} cannot be read: {line.strip()[:40]!a}"
    if not blocks:
        return None
    without_errors = [lid for lid, _, counts in blocks if not _errors(counts)]
    if without_errors and not damaged:
        damaged = f"{without_errors[0]} has no error counter"
    if not damaged and any(_FIRST in counts and _LAST not in counts for counts in standard):
        damaged = "it ends before the last error counter (VL15Dropped)"
    return captured("perfquery", ("ib.errors",), damaged, nics=_nics(blocks))


def sysfs_counter(name: str) -> str:
    """A counter's name in sysfs: SymbolErrorCounter → symbol_error."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if words and words[-1] == "counter":
        words.pop()
    return "_".join(words)


def _nics(blocks: list[tuple[str, int, dict[str, int]]]) -> tuple[Nic, ...]:
    ports: dict[str, dict[int, dict[str, int]]] = {}
    for lid, number, counts in blocks:
        ports.setdefault(lid, {}).setdefault(number, {}).update(_errors(counts))
    return tuple(
        Nic(
            name=lid,
            ports=tuple(
                NicPort(port=number, counters=_counters(counts))
                for number, counts in sorted(by_number.items())
            ),
        )
        for lid, by_number in ports.items()
    )


def _counters(counts: Mapping[str, int]) -> Counters | None:
    nonzero = tuple(Counter(name, min(n, _LARGEST)) for name, n in sorted(counts.items()) if n)
    return Counters(len(counts), 0.0, nonzero) if counts else None


def _errors(counts: Mapping[str, int]) -> dict[str, int]:
    """The error counters, without traffic and selectors."""
    return {name: value for name, value in counts.items() if _ERRORS.search(name)}


_LONGEST_VALUE: Final = 512
_CA: Final = re.compile(r"^\W*CA(:?) '([!-&(-~]{1,64})'")
"""With a colon: `ibstat CA PORT` lists only that port."""
_HALF: Final = re.compile(r"C|CA:?|CA:? '?[^']*|link \S*|Infiniband device.{0,60}(?<!status:)")
_CA_PORT: Final = re.compile(r"^\s*Port ([0-9]{1,3}):\s*$")
_PORT_LINE: Final = re.compile(
    r"\s*(?:Port [0-9]{1,3}:\s*$|(?:Physical state|Base lid|Port GUID|Link layer|phys state"
    r"|base lid|link_layer):\s)"
)
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
"""Errors that a tool prints instead of the next device."""
_LAYERS: Final = ("infiniband", "ethernet", "iwarp", "unspecified", "unknown")
_STATES: Final = re.compile(r"(?:[0-9]:\s*)?(?:NOP|DOWN|INIT\w*|ARMED|ACTIVE\w*)", re.IGNORECASE)


@dataclass
class _Device:
    name: str
    one_port: bool = False
    torn: bool = False
    """Whether it has the lines of two devices: the heading of one is missing."""
    words: dict[str, str] = field(default_factory=dict)
    ports: dict[int, dict[str, str]] = field(default_factory=dict)


def parse_ports(text: str) -> Iterator[Captured]:
    """Read every kind of listing in the text, or its error if it has only that."""
    lines = text.splitlines()
    readers: tuple[tuple[str, Callable[[list[str]], list[_Device]]], ...] = (
        ("ibstat", _ibstat),
        ("ibstatus", _ibstatus),
        ("rdma link", _rdma_link),
    )
    listings = {kind: devices for kind, parse in readers if (devices := parse(lines))}
    for kind, devices in listings.items():
        damaged = _cut_or_failed(text) or _lost_heading(lines) or next(_faults(kind, devices), "")
        one_port = any(device.one_port for device in devices)
        problems = _problems(damaged, "one port was asked for" if one_port else "")
        checks = _ONE_PORT if one_port else _CHECKS[kind]
        nics = tuple(_nic(device) for device in devices)
        yield captured(kind, checks, damaged, nics=nics, problems=problems)
    error = short_error(text, _ERROR) if not listings else None
    if error is not None:
        message = text[error.start() :].strip().splitlines()[0][:120]
        damaged = f"it contains an error and no port: {message}"
        yield captured("ibstat", _CHECKS["ibstat"], damaged, problems=_problems(damaged))


def _lost_heading(lines: list[str]) -> str:
    """Whether the first lines belong to a device whose heading was cut off."""
    for line in lines:
        if _CA.match(line) or _STATUS.search(line):
            return ""
        if _PORT_LINE.match(line):
            return f"it begins within a device: {line.strip()[:40]!a}"
    return ""


def _cut_or_failed(text: str) -> str:
    if _HALF.fullmatch(text.rstrip().rpartition("\n")[2]):
        return "it ends within the heading of a device"
    failed = _FAILED.search(text)
    return f"it contains an error: {failed.group().strip()[:120]}" if failed else ""


def _ibstat(lines: list[str]) -> list[_Device]:
    devices: list[_Device] = []
    words: dict[str, str] = {}
    for line in lines:
        if match := _CA.match(line):
            devices.append(_Device(match.group(2), one_port=bool(match.group(1))))
            words = devices[-1].words
        elif devices and (match := _CA_PORT.match(line)):
            words = devices[-1].ports.setdefault(int(match.group(1)), {})
        elif devices and (match := _PAIR.match(line)):
            key = _key(match.group(1))
            devices[-1].torn |= key == "ca type" and key in devices[-1].words
            words.setdefault(key, match.group(2)[:_LONGEST_VALUE])
    return devices


def _ibstatus(lines: list[str]) -> list[_Device]:
    devices: dict[str, _Device] = {}
    words: dict[str, str] | None = None
    for line in lines:
        if match := _STATUS.search(line):
            device = devices.setdefault(match.group(1), _Device(match.group(1)))
            words = device.ports.setdefault(int(match.group(2)), {})
        elif words is not None and (match := _PAIR.match(line)):
            words.setdefault(_key(match.group(1)), match.group(2)[:_LONGEST_VALUE])
    return list(devices.values())


def _rdma_link(lines: list[str]) -> list[_Device]:
    """One text may have listings of several hosts, each under its name."""
    devices: dict[str, _Device] = {}
    host = ""
    for line in lines:
        match = _LINK.match(line)
        if match is None:
            host_match = _HOST.match(line)
            host = host_match.group(1) if host_match else host
            continue
        name = match.group(1)
        if name in devices and int(match.group(2)) in devices[name].ports:
            name = f"{host or 'again'} {name}"[:_LONGEST_VALUE]
        device = devices.setdefault(name, _Device(name))
        state = _LINK_STATE.search(line, match.end() - 1)
        words = device.ports.setdefault(int(match.group(2)), {})
        if state:
            words |= {"state": state.group(1), "physical state": state.group(2)}
            words["netdev"] = (state.group(3) or "")[:_LONGEST_VALUE]
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
        phys_state=words.get("physical state", ""),
        rate=words.get("rate", ""),
        link_layer=words.get("link layer", ""),
        netdev=device_name(words.get("netdev", "")),
    )


def _faults(kind: str, devices: list[_Device]) -> Iterator[str]:
    """What is missing or invalid in an output of that kind."""
    names = Counted(device.name for device in devices)
    yield from (f"{name} is in it twice" for name, times in names.items() if times > 1)
    yield from (f"{device.name} has the lines of two devices" for device in devices if device.torn)
    keys = ["state", "physical state", "rate", "link layer"] if kind != "rdma link" else ["state"]
    for device in devices:
        number_of_ports = device.words.get("number of ports", "")
        if kind == "ibstat" and (
            not device.ports or (whole(number_of_ports) or 0) > len(device.ports)
        ):
            yield f"ports of {device.name} are missing"
        for number, words in sorted(device.ports.items()):
            missing = [word for word in keys if not words.get(word)]
            if missing:
                yield f"{device.name} port {number} has no {missing[0]}"
            elif words.get("link layer", _LAYERS[0]).lower() not in _LAYERS:
                yield f"{device.name} port {number} has half a link layer: {words['link layer']!a}"
            elif not _STATES.fullmatch(words["state"]):
                yield f"{device.name} port {number} has no state that there is: {words['state']!a}"


def _key(text: str) -> str:
    """The key in ibstat's form; ibstatus has `phys state`."""
    words = " ".join(text.lower().replace("_", " ").split())
    return "physical state" if words == "phys state" else words


_RDMA_PATH: Final = re.compile(
    r"^(.*?)/infiniband/([^/\s]{1,64})/(?:ports/([0-9]{1,3})/)?([\w/]{1,80})$"
)
_NET_PATH: Final = re.compile(r"^(.*?)/net/([^/\s]{1,64})/(\w{1,40})$")
_TRUNCATED_JSON: Final = re.compile(r'^\s*\{.*?"(?>[^"]*?/infiniband/)[^"]*"\s*:', re.DOTALL)
_UP_FLAGS: Final = "0x1003"
_LONGEST_STATE: Final = 64


@dataclass
class _SysfsFiles:
    devices: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    ports: dict[str, dict[int, dict[str, str]]] = field(default_factory=dict)
    nets: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    """By PCI device, then by name."""


def parse_sysfs(text: str) -> Captured | None:
    """Read a JSON object of paths; None for another text or without an RDMA device."""
    tree, damaged = json_of(text, _TRUNCATED_JSON)
    if damaged:
        return _captured_sysfs(None, (), damaged)
    if not isinstance(tree, dict) or not any("/infiniband/" in path for path in tree):
        return None
    texts = ((k, v) for k, v in tree.items() if isinstance(v, str))
    files = _sysfs_files({printable_lines(k): printable_lines(v).strip() for k, v in texts})
    nics = tuple(_sysfs_tree_nic(name, files) for name in sorted(files.ports, key=natural))
    interfaces = tuple(
        _interface(name, words)
        for by_name in files.nets.values()
        for name, words in sorted(by_name.items(), key=lambda pair: natural(pair[0]))
    )
    gaps = [f"{n.name} port {p.port}" for n in nics for p in n.ports if not (p.state and p.rate)]
    damaged = f"{gaps[0]} has no state or rate" if gaps else "" if nics else "it has no port"
    return _captured_sysfs(nics or None, interfaces, damaged)


def _captured_sysfs(
    nics: tuple[Nic, ...] | None, interfaces: tuple[Interface, ...], damaged: str
) -> Captured:
    has_counters = any(port.counters for nic in nics or () for port in nic.ports)
    checks = (*_CHECKS["ibstat"], *(("ib.errors",) if has_counters else ()))
    network = Network(interfaces=interfaces or None)
    problems = _problems(damaged)
    return captured(KINDS[-1], checks, damaged, nics=nics, network=network, problems=problems)


def _sysfs_files(tree: Mapping[str, str]) -> _SysfsFiles:
    files = _SysfsFiles()
    for path, content in tree.items():
        if match := _RDMA_PATH.match(path):
            place, name, port, file = match.groups()
            words = files.devices.setdefault(name, (place, {}))[1]
            if port:
                words = files.ports.setdefault(name, {}).setdefault(int(port), {})
            words[file] = " ".join(content.split())[:512]
        elif match := _NET_PATH.match(path):
            place, name, file = match.groups()
            files.nets.setdefault(place, {}).setdefault(name, {})[file] = content[:512]
    return files


def _sysfs_tree_nic(name: str, sysfs: _SysfsFiles) -> Nic:
    place, words = sysfs.devices[name]
    nets = sysfs.nets.get(place, {})
    return Nic(
        name=device_name(name),
        ports=tuple(
            _sysfs_tree_port(at, files, nets) for at, files in sorted(sysfs.ports[name].items())
        ),
        netdevs=tuple(map(device_name, sorted(nets))),
        firmware=words.get("fw_ver", ""),
        board=words.get("board_id", ""),
        hca_type=words.get("hca_type", ""),
    )


def _sysfs_tree_port(
    number: int, words: Mapping[str, str], nets: Mapping[str, Mapping[str, str]]
) -> NicPort:
    netdevs = [name for name, files in nets.items() if _dev_port(files) == number - 1]
    netdev = netdevs[0] if netdevs else ""
    counts = {
        path.rpartition("/")[2]: count
        for path, content in words.items()
        if "counters/" in path and (count := whole(content, _COUNT_LIMIT)) is not None
    }
    downs = whole(nets.get(netdev, {}).get("carrier_down_count", ""), _COUNT_LIMIT)
    if downs is not None:
        counts["carrier_downs"] = downs
    return NicPort(
        port=number,
        state=words.get("state", "")[:_LONGEST_STATE],
        phys_state=words.get("phys_state", "")[:_LONGEST_STATE],
        rate=words.get("rate", ""),
        link_layer=words.get("link_layer", ""),
        netdev=device_name(netdev),
        counters=_counters(counts),
    )


def _dev_port(words: Mapping[str, str]) -> int:
    """The port of its device that an interface uses; trees may lack the newer file."""
    text = words.get("dev_port", "0")
    return int(text, 0) if re.fullmatch(r"0x[0-9a-f]+|[0-9]+", text) else 0


def _interface(name: str, words: Mapping[str, str]) -> Interface:
    flags = words.get("flags", "")
    mtu, speed, index = (words.get(key, "") for key in ("mtu", "speed", "ifindex"))
    return Interface(
        name=device_name(name),
        index=whole(index) or 0,
        up=bool(int(flags if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", flags) else _UP_FLAGS, 16) & 1),
        operstate=words.get("operstate", ""),
        physical=True,
        mtu=whole(mtu),
        speed_mbits=whole(speed),
    )


KINDS: Final = ("ibstat", "ibstatus", "rdma link", "perfquery", "a tree of /sys as JSON")
_CHECKS: Final = {
    "ibstat": ("ib.count", "ib.port", "ib.rate", "ib.firmware"),
    "ibstatus": ("ib.count", "ib.port", "ib.rate"),
    "rdma link": ("ib.count", "ib.port"),
}
_ONE_PORT: Final = ("ib.port", "ib.rate")


def read(text: str) -> Iterator[Captured]:
    """Read the ports from each tool's part of a text."""
    if tree := parse_sysfs(text):
        yield tree
        return
    text = printable_lines(text)
    if counters := parse_perfquery(text):
        yield counters
    yield from parse_ports(text)


def _problems(damaged: str, limit: str = "") -> tuple[str, ...]:
    """A problem, so that an incomplete listing does not count as "no port is up"."""
    problem = damaged or limit
    return (f"nics: {problem}",) if problem else ()
