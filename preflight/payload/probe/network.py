"""Reads interfaces, addresses, links and names, which a job needs to connect."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import re
import socket
import struct
import time
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from . import guard
from .node_files import attempt, clean, counters, names, number, safe_name

Addresses = Dict[int, List[str]]
Lookups = List[Tuple[str, guard.Child]]

_GET_ADDRESS = 22
_DONE, _ERROR = 3, 2
_REQUEST_DUMP = 0x301
_LOCAL, _ADDRESS = 2, 1
"""IFA_LOCAL is our address; so is IFA_ADDRESS, except on a point-to-point link (the far end)."""

_WAIT_S = 2.0
_HEAD = struct.Struct("=IHHII")
_BODY = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")


def addresses_by_index() -> Addresses:
    """Return addresses ("10.77.0.1/24") by interface index, IPv4 first; OSError if refused."""
    addresses: Addresses = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        for bodies in answers(socket.NETLINK_ROUTE, _GET_ADDRESS, _BODY.pack(family, 0, 0, 0, 0)):
            for body in bodies:
                _add_address(body, family, addresses)
    return addresses


def answers(protocol: int, kind: int, request: bytes) -> Iterator[list[bytes]]:
    """Dump all of the kernel's entries of a kind, netlink(7); yield their bodies as they come."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as kernel:
        kernel.settimeout(_WAIT_S)
        kernel.send(_HEAD.pack(_HEAD.size + len(request), kind, _REQUEST_DUMP, 1, 0) + request)
        going = True
        while going:
            bodies, going = messages(kernel.recv(1 << 18))
            yield bodies


def messages(data: bytes) -> tuple[list[bytes], bool]:
    """Split a datagram into the bodies of its messages, and return whether more will come.

    OSError where the kernel refuses; a truncated message ends the dump.
    """
    bodies: list[bytes] = []
    while len(data) >= _HEAD.size:
        size, kind, _, _, _ = _HEAD.unpack_from(data)
        if kind == _DONE or size < _HEAD.size or size > len(data):
            return bodies, False
        if kind == _ERROR:
            code = struct.unpack_from("=i", data, _HEAD.size)[0] if size >= _HEAD.size + 4 else 0
            raise OSError(-code, "the kernel refuses to list them")
        bodies.append(data[_HEAD.size : size])
        data = data[(size + 3) & ~3 :]
    return bodies, True


def attributes(data: bytes) -> dict[int, bytes]:
    """Split the attributes of a message, by their kind."""
    values: dict[int, bytes] = {}
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        if size < _ATTRIBUTE.size:
            break
        values[kind] = data[_ATTRIBUTE.size : size]
        data = data[(size + 3) & ~3 :]
    return values


def _add_address(body: bytes, family: int, addresses: Addresses) -> None:
    its_family, bits, _, _, index = _BODY.unpack_from(body.ljust(_BODY.size, b"\0"))
    raw = attributes(body[_BODY.size :])
    address = raw.get(_LOCAL) or raw.get(_ADDRESS, b"")
    if its_family == family and len(address) == (4 if family == socket.AF_INET else 16):
        addresses.setdefault(index, []).append(f"{socket.inet_ntop(family, address)}/{bits}")


def interface_of(address: str) -> str:
    """The interface that has this address; "" if none has."""
    prefix = address.partition("%")[0] + "/"
    with contextlib.suppress(OSError):
        for index, cidrs in addresses_by_index().items():
            if any(cidr.startswith(prefix) for cidr in cidrs):
                return socket.if_indextoname(index)
    return ""


_SIOCETHTOOL = 0x8946
_GET_LINK_SETTINGS = 0x4C
_LINK_SETTINGS_HEAD = "=II7Bb4B7I"
"""struct ethtool_link_settings, as far as the masks of link modes."""
_WORDS_AT = 9
_SPEEDS = (
    # (Mb/s, first and last ETHTOOL_LINK_MODE_*_BIT), linux/ethtool.h of Linux 6.12.
    (10, 0, 1), (100, 2, 3), (1000, 4, 5), (10000, 12, 12), (2500, 15, 15), (1000, 17, 17),
    (10000, 18, 20), (20000, 21, 22), (40000, 23, 26), (56000, 27, 30), (25000, 31, 33),
    (50000, 34, 35), (100000, 36, 39), (50000, 40, 40), (1000, 41, 41), (10000, 42, 46),
    (2500, 47, 47), (5000, 48, 48), (50000, 52, 56), (100000, 57, 61), (200000, 62, 66),
    (100, 67, 67), (1000, 68, 68), (400000, 69, 73), (100000, 75, 79), (200000, 80, 84),
    (400000, 85, 89), (100, 90, 91), (10, 92, 92), (800000, 93, 98),
)  # fmt: skip
_COUNTED = (
    "rx_packets", "tx_packets", "rx_crc_errors", "rx_frame_errors", "rx_missed_errors",
    "rx_fifo_errors", "tx_carrier_errors", "collisions",
)  # fmt: skip
IFCFG = "/etc/sysconfig/network-scripts/ifcfg-"


def read_ethernet(name: str, path: str) -> dict[str, Any]:
    """Return an `Ethernet` document of the interface whose folder in sysfs this is."""
    most, partner = _modes(name)
    duplex = attempt(path + "/duplex")
    return {
        "duplex": duplex if duplex in ("full", "half") else "",
        "most_mbits": most,
        "partner_mbits": partner or None,
        "mtu_wanted": _configured_mtu(name),
        "counters": _counters(path + "/statistics/"),
    }


def fastest(mask: int) -> int:
    """Return the speed of the fastest link mode of a mask, Mb/s; 0 where there is none."""
    rates = (mbits for mbits, first, last in _SPEEDS if mask >> first & (1 << last - first + 1) - 1)
    return max(rates, default=0)


def _modes(name: str) -> tuple[int | None, int | None]:
    """Return the fastest mode of the device and of the other end; None where not known."""
    with contextlib.suppress(OSError):
        words = -_ask(name, 0)[_WORDS_AT]
        if words > 0:  # the kernel answers with the length of its masks, as a negative
            masks = _ask(name, words)[-3 * words :]
            supported, _, partner = (masks[at * words : (at + 1) * words] for at in range(3))
            return fastest(_mask(supported)), fastest(_mask(partner))
    return None, None


def _ask(name: str, words: int) -> list[int]:
    form = f"{_LINK_SETTINGS_HEAD}{3 * words}I"
    head = [_GET_LINK_SETTINGS, 0, *[0] * 7, words, *[0] * (4 + 7 + 3 * words)]
    return list(struct.unpack(form, _ethtool(name, struct.pack(form, *head))))


def _ethtool(name: str, question: bytes) -> bytes:
    """Ask the driver of an interface, ioctl(SIOCETHTOOL); OSError where it does not answer."""
    buffer = array.array("B", question)
    address, _ = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, struct.pack("16sP", os.fsencode(name)[:15], address))
    return buffer.tobytes()


def _mask(words: list[int]) -> int:
    return sum(word << 32 * at for at, word in enumerate(words))


def _configured_mtu(name: str) -> int | None:
    """Return the MTU in the machine's configuration; None where it has none."""
    match = re.search(r"(?:^| )MTU=[\"']?([0-9]{2,5})\b", attempt(IFCFG + os.path.basename(name)))
    return int(match.group(1)) if match else None


def _counters(folder: str) -> list[dict[str, Any]] | None:
    counts = counters({name: folder + name for name in _COUNTED})
    nonzero = [{"name": name, "value": value} for name, value in counts.items() if value]
    return nonzero if counts else None


MOST = 64
"""Interfaces in the document: a node with many containers has hundreds of them."""

_UP, _LOOPBACK = 0x1, 0x8
"""IFF_UP and IFF_LOOPBACK, as sysfs prints them in `flags`."""

_GET_FEC = 0x50
_FEC = {1: "none", 2: "auto", 4: "off", 8: "rs", 16: "baser", 32: "llrs"}
"""ETHTOOL_FEC_* bits of linux/ethtool.h, in ethtool's words."""


def read(root: str, proc: str = "/proc/sys/net/ipv4") -> dict[str, Any]:
    """Return the `interfaces`, `ephemeral` and `reserved` of a `Network` document."""
    return {
        "interfaces": _interfaces(root),
        "ephemeral": port_range(proc),
        "reserved": attempt(proc + "/ip_local_reserved_ports"),
    }


def _interfaces(root: str) -> list[dict[str, Any]] | None:
    """Return the interfaces here, by index; None without sysfs, OSError if refused."""
    folder = root + "/class/net"
    try:
        entries = os.listdir(folder)
    except FileNotFoundError:
        return None
    addressed = addresses_by_index()
    interfaces: list[dict[str, Any]] = []
    for name in entries:
        path = f"{folder}/{name}"
        index = number(path + "/ifindex")
        if index is None:  # such as bonding_masters, which is a file
            continue
        interface = _interface(name, path, addressed.get(index, []))
        interfaces.append({"index": index, **interface})
    interfaces.sort(key=_rating)
    return sorted(interfaces[:MOST], key=lambda interface: int(interface["index"]))


def _rating(interface: dict[str, Any]) -> tuple[bool, bool, int]:
    """Sort key: first those with a routable address, then devices, then virtual ones."""
    routable = any(not address.startswith("fe80") for address in interface["addresses"])
    return not routable, not interface["physical"], int(interface["index"])


def _interface(name: str, path: str, addresses: list[str]) -> dict[str, Any]:
    flags = attempt(path + "/flags")
    bits = int(flags, 16) if re.match(r"0x[0-9a-f]{1,8}$", flags) else 0
    physical = os.path.exists(path + "/device")
    master = os.path.basename(os.path.realpath(path + "/master"))
    loopback = bool(bits & _LOOPBACK)
    return {
        "name": safe_name(name),
        "up": bool(bits & _UP),
        "operstate": attempt(path + "/operstate"),
        "loopback": loopback,
        "physical": physical,
        "mtu": number(path + "/mtu"),
        "speed_mbits": number(path + "/speed") or None,
        "carrier_downs": number(path + "/carrier_down_count"),
        "fec": _fec(name) if physical else "",
        "master": safe_name(master) if os.path.exists(path + "/master") else "",
        "lower": [safe_name(name[6:]) for name in names(path) if name.startswith("lower_")][:32],
        "ethernet": None if loopback or not (addresses or physical) else read_ethernet(name, path),
        "addresses": addresses,
    }


def port_range(proc: str = "/proc/sys/net/ipv4") -> list[int] | None:
    """Return the kernel's range of local ports; None if not known."""
    words = attempt(proc + "/ip_local_port_range").split()
    if len(words) != len(("first", "last")) or not all(word.isdigit() for word in words):
        return None
    return [int(word) for word in words]


def _fec(name: str) -> str:
    """Return the forward error correction in use; "" where the driver does not report it."""
    with contextlib.suppress(OSError):
        answer = _ethtool(name, struct.pack("=IIII", _GET_FEC, 0, 0, 0))
        return _FEC.get(struct.unpack("=IIII", answer)[1], "")
    return ""


PATIENCE_S = 4.0
"""A name server that is down delays the resolver, and so every rank, by 5 s or more."""

MOST_NAMES = 4
_DISCARD = 9  # any port will do: nothing is sent there
_ADDRESSES = 16


def start(hosts: Sequence[str]) -> Lookups:
    """Look up the host's own name and those of `hosts`, all at once, each in its own child."""
    if not hosts:
        return []
    hostnames = [os.uname().nodename, *list(hosts)[:MOST_NAMES]]
    return [(name, guard.spawn(_look_up, name)) for name in hostnames]


def finish(lookups: Lookups, until: float) -> list[dict[str, Any]]:
    """Return a `Resolved` document for each name, the host's own first."""
    return [_resolved(name, child, until) for name, child in lookups]


def source_address(towards: str) -> str:
    """Our source address to another node; OSError without a route."""
    infos = socket.getaddrinfo(towards, _DISCARD, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, there = infos[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(there)  # a datagram socket: finds the route, sends nothing
        return str(probe.getsockname()[0])


def _look_up(name: str) -> list[Any]:
    began = time.monotonic()
    infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    addresses = dict.fromkeys(str(info[4][0]) for info in infos)
    return [list(addresses)[:_ADDRESSES], round(time.monotonic() - began, 3)]


def _resolved(name: str, child: guard.Child, until: float) -> dict[str, Any]:
    """Only time in which the child waits for an answer counts (`guard.Waiting`)."""
    answered = child.listen(until, most_s=PATIENCE_S)
    waited_s = round(child.waiting.seconds, 3)
    child.dismiss(kill=not answered)
    resolved: dict[str, Any] = {
        "name": safe_name(name, 255),
        "addresses": [],
        "error": "",
        "seconds": 0.0,
    }
    if not answered:
        return {**resolved, "error": f"no answer in {waited_s:.0f} s", "seconds": waited_s}
    try:
        addresses, seconds = child.value()
    except guard.BrokenError as error:
        return {**resolved, "error": clean(str(error))}
    seconds = min(seconds, waited_s)
    return {**resolved, "addresses": [clean(address) for address in addresses], "seconds": seconds}
