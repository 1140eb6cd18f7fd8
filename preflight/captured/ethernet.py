"""Reads Ethernet links from ethtool, ip -j, ethtool --json and lshw.

Collectors nest the JSON lists of `ip` and `lshw` in their documents, beside speeds or
configuration: such lists are searched at any depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from preflight.captured import Captured, captured, json_of, lines_of, short_error
from preflight.checks.net.test_ethernet import kind_of
from preflight.core.text import whole
from preflight.facts.basics import device_name
from preflight.facts.node import parse_address
from preflight.facts.node_network import Counter, Ethernet, Interface, Network

Row = Mapping[str, Any]


KINDS: Final = ("ethtool", "ethtool -S")
_CHECKS: Final = ("net.ethernet",)
_SETTINGS: Final = re.compile(r"^\s*Settings for (\S{1,32}):\s*$")
_PAIR: Final = re.compile(r"^\s*([A-Z][\w \-()]{2,48}?):(?:\s+(.*?))?\s*$")
_STATISTICS: Final = re.compile(r"^\s*NIC statistics:\s*$")
_SUM_COUNTER: Final = re.compile(r"ch_[a-z]")
"""mlx5 sums counters over its channels, and lists those of each channel last."""
_CHANNEL_COUNTER: Final = re.compile(r"(?:ch|rx|tx)\d+_")
_STATISTICS_COMMAND: Final = re.compile(r"\bethtool\s+(?:-S|--statistics)\s+([\w.@-]{1,32})")
_COUNTER: Final = re.compile(r"^\s+(\S.{0,78}?):\s*(-?[0-9]+(?:\.[0-9]+)?|0x[0-9a-fA-F]+)\s*$")
_PROMPT: Final = re.compile(r"^\S*[\w~\])]\s?[$#](?:\s|$)|^[$#]\s?$")
_MODE: Final = re.compile(r"\b([0-9]{2,7})base")
_SPEED: Final = re.compile(r"^([0-9]{1,7})\s?Mb/s")
_FAULTS: Final = re.compile(r"err|discard|drop|out_of_buffer|missed|fifo|down|collision|pause")
_ERROR: Final = re.compile(
    r"^[^\S\n]*(?:Cannot get (?:device settings|stats|driver information)|netlink error:|ethtool:"
    r"|no stats available|No data available|bad command line).*",
    re.MULTILINE,
)
_MOST: Final = 256
"""Counters stored per interface."""
_LARGEST_COUNT: Final = 2**53


def read_ethtool(text: str) -> Captured | None:
    """Read every interface with settings or statistics in a text; None for other texts."""
    lines = lines_of(text)
    if any(_SETTINGS.match(line) for line in lines):
        return _settings(lines)
    if any(_STATISTICS.match(line) for line in lines):
        return _statistics(lines)
    error = short_error(text, _ERROR)
    if error is None:
        return None
    return _captured("ethtool", None, f"it contains an error: {error.group().strip()[:120]}")


def read_statistics(text: str) -> Captured | None:
    """Read the statistics beside settings; None where `read_ethtool` reads them, or has none."""
    lines = lines_of(text)
    has_both = any(map(_SETTINGS.match, lines)) and any(map(_STATISTICS.match, lines))
    return _statistics(lines) if has_both else None


def fastest(modes: Iterable[str]) -> int:
    """Mb/s of the fastest link mode, such as "100000baseCR4/Full"; 0 if there is none."""
    return max((int(mode) for text in modes for mode in _MODE.findall(text)), default=0)


def _settings(lines: list[str]) -> Captured:
    blocks: list[tuple[str, dict[str, str]]] = []
    key = ""
    for line in lines:
        if heading := _SETTINGS.match(line):
            blocks.append((heading.group(1), {}))
            key = ""
        elif blocks and (pair := _PAIR.match(line)):
            key = pair.group(1).lower()
            blocks[-1][1].setdefault(key, (pair.group(2) or "")[:512])
        elif blocks and key and line.strip() and "base" in line:
            blocks[-1][1][key] = f"{blocks[-1][1][key]} {line.strip()}"[:4096]
    cut = [name for name, settings in blocks if _link(settings) not in ("yes", "no")]
    damaged = f'{cut[0]} has no "Link detected: yes" or "no"' if cut else ""
    return _captured("ethtool", [_interface(name, settings) for name, settings in blocks], damaged)


def _interface(name: str, settings: Mapping[str, str]) -> Interface:
    speed = _SPEED.match(settings.get("speed", ""))
    duplex = settings.get("duplex", "").lower()
    supported = settings.get("supported link modes")
    partner = settings.get("link partner advertised link modes", "")
    return Interface(
        device_name(name),
        operstate={"yes": "up", "no": "down"}.get(_link(settings), ""),
        physical=True,
        speed_mbits=int(speed.group(1)) if speed else None,
        ethernet=Ethernet(
            duplex=duplex if duplex in ("full", "half") else "",
            most_mbits=None if supported is None else fastest([supported]),
            partner_mbits=fastest([partner]) or None,
        ),
    )


def _link(settings: Mapping[str, str]) -> str:
    """Yes or no, without the reason that newer versions add: "no (No cable)"."""
    return settings.get("link detected", "").partition(" (")[0].strip().lower()


def _statistics(lines: list[str]) -> Captured:
    blocks: list[tuple[str, dict[str, int]]] = []
    name, inside, damaged = "NIC", False, ""
    for line in lines:
        if command := _STATISTICS_COMMAND.search(line):
            name, inside = command.group(1), False
        elif _SETTINGS.match(line):
            inside = False
        elif _STATISTICS.match(line):
            blocks.append((name, {}))
            inside = True
        elif inside and (pair := _COUNTER.match(line)):
            if (value := whole(pair.group(2), 2**64)) is not None:
                blocks[-1][1][pair.group(1)] = min(value, _LARGEST_COUNT)
        elif inside and line.strip() and not _PROMPT.match(line):
            damaged = damaged or f"a line cannot be read: {line.strip()[:40]!a}"
    damaged = damaged or next(filter(None, (_missing_counter(*block) for block in blocks)), "")
    return _captured("ethtool -S", [_counters_interface(*block) for block in blocks], damaged)


_LONGEST_EXCERPT: Final = 20
"""Counters that someone may have picked; mlx5 lists hundreds, among them both of a port."""
_SHORTEST_FRAME: Final = 60
"""Bytes of an Ethernet frame without its checksum; two rows that a cut joined may show fewer."""


def _missing_counter(name: str, counts: Mapping[str, int]) -> str:
    """What is missing in a list of counters; "" if nothing is."""
    if not any(kind_of(key) in ("broken", "dropped") for key in counts):
        return f"{name} has no counter of broken or dropped frames"
    if not any(kind_of(key) == "packets" for key in counts):
        return f"{name} has no count of packets"
    if any(map(_SUM_COUNTER.match, counts)) and not any(map(_CHANNEL_COUNTER.match, counts)):
        return f"{name} counts over its channels, but lists none"
    for frames, size in (("rx_packets", "rx_bytes"), ("rx_packets_phy", "rx_bytes_phy")):
        packets, octets = counts.get(frames, 0), counts.get(size)
        if packets and octets is None and len(counts) > _LONGEST_EXCERPT:
            return f"{name} lists {frames}, but no {size}"
        if octets is not None and packets * _SHORTEST_FRAME > octets:
            return f"{name} has fewer than {_SHORTEST_FRAME} bytes for each packet"
    at_port = len(counts) > _LONGEST_EXCERPT and any(key.endswith("_phy") for key in counts)
    missing = {"rx_packets_phy", "rx_discards_phy"} - set(counts) if at_port else ()
    return f"{name} counts at its port, but lists no {min(missing)}" if missing else ""


def _counters_interface(name: str, counts: Mapping[str, int]) -> Interface:
    names = [key for key in counts if kind_of(key)]
    names += [key for key in counts if not kind_of(key) and _FAULTS.search(key)]
    counters = tuple(Counter(key[:512], counts[key]) for key in names if counts[key])[:_MOST]
    flaps = [counts[key] for key in counts if kind_of(key) == "flaps"]
    return Interface(
        device_name(name),
        physical=True,
        carrier_downs=max(flaps, default=None),
        ethernet=Ethernet(counters=counters),
    )


def _captured(kind: str, interfaces: Iterable[Interface] | None, damaged: str) -> Captured:
    all_interfaces = None if interfaces is None else tuple(interfaces)
    return captured(kind, _CHECKS, damaged, network=Network(interfaces=all_interfaces))


KIND: Final = "interfaces as JSON"
_TRUNCATED_JSON: Final = re.compile(r'^\s*[\[{].*"(?:ifname|logicalname|intf\w*)"\s*:', re.DOTALL)
_DEEPEST: Final = 8
_VIRTUAL: Final = re.compile(r"^(?:lo|docker|veth|virbr|br-|cni|flannel|cali|tun|tap|bond\d)")
_UNITS: Final = {"": 1, "k": 10**-3, "m": 1, "g": 10**3, "t": 10**6}
_RATE: Final = re.compile(r"^([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*([kKmMgGtT]?)(?:b(?:it)?(?:/s|ps)?)?$")


def read_interfaces_json(text: str) -> Captured | None:
    """Read the interfaces of a JSON text; None if it has none."""
    tree, damaged = json_of(text, _TRUNCATED_JSON)
    if tree is None:
        return _captured(KIND, None, damaged) if damaged else None
    rows = {_name(row["ifname"]): row for row in _rows(tree) if _name(row["ifname"])}
    if not rows:
        return None
    speeds, mtus = _speeds_and_mtus(tree, rows)
    interfaces = [
        _json_interface(name, row, speeds.get(name), mtus.get(name)) for name, row in rows.items()
    ]
    incomplete = [
        interface.name
        for interface in interfaces
        if not (interface.mtu or interface.speed_mbits or interface.operstate)
    ]
    damaged = f"{incomplete[0]} has no MTU, speed or state" if incomplete else ""
    missing = sorted((set(speeds) | set(mtus)) - set(rows))
    damaged = damaged or (f"{missing[0]} is configured and not listed" if missing else "")
    return _captured(KIND, interfaces, damaged)


def _dicts(tree: Any, depth: int = 0) -> Iterator[tuple[str, Row]]:
    """Every object of the tree, with its key."""
    pairs = tree.items() if isinstance(tree, dict) else (("", value) for value in tree)
    if isinstance(tree, dict) and depth == 0:
        yield "", tree
    for key, value in pairs:
        if isinstance(value, dict):
            yield str(key), value
        if isinstance(value, (dict, list)) and depth < _DEEPEST:
            yield from _dicts(value, depth + 1)


def _rows(tree: Any) -> Iterator[Row]:
    for _, row in _dicts(tree):
        if isinstance(row.get("ifname"), str):
            yield row
        elif row.get("class") == "network" and (name := row.get("logicalname")):
            yield {**_lshw_row(row), "ifname": name[0] if isinstance(name, list) else name}


def _lshw_row(row: Row) -> dict[str, Any]:
    configuration = row.get("configuration")
    settings = configuration if isinstance(configuration, dict) else {}
    capacity = row.get("capacity")
    return {
        "speed": settings.get("speed"),
        "duplex": settings.get("duplex"),
        "link-detected": {"yes": True, "no": False}.get(str(settings.get("link", ""))),
        "most": capacity // 10**6 if isinstance(capacity, int) else None,
    }


def _speeds_and_mtus(tree: Any, rows: Mapping[str, Row]) -> tuple[dict[str, int], dict[str, int]]:
    """Speeds and configured MTUs beside the list, by interface."""
    speeds: dict[str, int] = {}
    mtus: dict[str, int] = {}
    for key, row in _dicts(tree):
        if not rows.keys() & row.keys():
            continue
        for name, value in row.items():
            if isinstance(value, dict) and (mtu := _whole(value.get("MTU", value.get("mtu")))):
                mtus[_name(name)] = mtu
            elif "speed" in key.lower() and (mbits := _mbits(value)):
                speeds[_name(name)] = mbits
    return speeds, mtus


def _json_interface(name: str, row: Row, speed: int | None, target_mtu: int | None) -> Interface:
    flags = row.get("flags")
    flag_names = {str(flag).upper() for flag in flags} if isinstance(flags, list) else set()
    detected = row.get("link-detected")
    state = str(row.get("operstate", "")).lower()
    if "NO-CARRIER" in flag_names or detected is False:
        state = "down"
    linkinfo, parent = row.get("linkinfo"), row.get("link")
    virtual = bool(_VIRTUAL.match(name) or {"MASTER", "LOOPBACK"} & flag_names or parent)
    virtual = virtual or (isinstance(linkinfo, dict) and bool(linkinfo.get("info_kind")))
    duplex, modes = str(row.get("duplex", "")).lower(), row.get("supported-link-modes")
    partner = row.get("link-partner-advertised-link-modes")
    return Interface(
        name,
        index=min(_whole(row.get("ifindex")) or 0, _LARGEST_COUNT),
        up="UP" in flag_names or detected is True,
        operstate=_name(state) or ("up" if detected else ""),
        loopback="LOOPBACK" in flag_names or name == "lo",
        physical=not virtual,
        mtu=_whole(row.get("mtu")),
        speed_mbits=speed or _mbits(row.get("speed")),
        master=_name(row.get("master", row.get("main", ""))),
        lower=(_name(parent),) if isinstance(parent, str) else (),
        addresses=tuple(_addresses(row.get("addr_info"))),
        ethernet=Ethernet(
            duplex=duplex if duplex in ("full", "half") else "",
            most_mbits=_whole(row.get("most")) if modes is None else _fastest(modes),
            partner_mbits=_fastest(partner) or None,
            mtu_wanted=target_mtu,
            counters=_counters(row.get("stats64", row.get("stats"))),
        ),
    )


def _name(value: Any) -> str:
    """The name of an interface, safe to print and type."""
    return device_name(str(value))


def _fastest(modes: Any) -> int | None:
    return fastest(map(str, modes)) if isinstance(modes, list) else None


def _addresses(rows: Any) -> Iterator[str]:
    for row in rows if isinstance(rows, list) else ():
        text = f"{row.get('local')}/{row.get('prefixlen')}" if isinstance(row, dict) else ""
        if parse_address(text) is not None:
            yield text


def _counters(statistics: Any) -> tuple[Counter, ...] | None:
    """The counters of ip -s -j, by their names in sysfs."""
    if not isinstance(statistics, dict):
        return None
    return tuple(
        Counter(f"{direction}_{name}", count)
        for direction in ("rx", "tx")
        if isinstance(counts := statistics.get(direction), dict)
        for name in ("packets", "crc_errors", "frame_errors", "missed_errors", "fifo_errors")
        if (count := _whole(counts.get(name)))
    )


def _whole(value: Any) -> int | None:
    """A count, also in quotes; None for anything else."""
    text = str(value).strip("\"' ")
    return int(text) if not isinstance(value, bool) and re.fullmatch(r"[0-9]{1,15}", text) else None


def _mbits(value: Any) -> int | None:
    """Mb/s of a number or of lshw's text: "100000", "25Gbit/s"; None for -1 and others."""
    match = _RATE.match(str(value).strip()) if isinstance(value, (str, int)) else None
    mbits = int(float(match.group(1)) * _UNITS[match.group(2).lower()]) if match else 0
    return mbits or None
