"""Reads the ranks' TCP connections, in their own network namespaces."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import sys
from typing import Any, Container, Iterator

from probe import procfs
from probe.network import answers, attributes
from probe.node_files import safe_name, words

from . import Document

STATES = (1, 2, 3, 4, 5, 8, 9, 11)
"""TCP states with a process at this end: TIME_WAIT and listeners are left out."""

_SOCK_DIAG, _BY_FAMILY = 4, 20
_INFO = 2
"""INET_DIAG_INFO: the attribute with struct tcp_info."""

_ASK = struct.Struct("=BBBBI48x")
_MESSAGE = struct.Struct("=BBBB2s2s16s16sI8xIIIII")
_RETRANSMIT = 1
"""The timer for retransmission of the oldest segment."""

MOST_SOCKETS = 500_000
"""Most sockets to read of each kind: any user can open more than can be read in time."""


def connections(inodes: Container[int]) -> list[Document]:
    """Return the TCP connections of this network namespace that have one of these inodes; OSError.

    All others, of which a user may have thousands, cost a microsecond each.
    """
    wires: list[Document] = []
    states = sum(1 << number for number in STATES)
    for body in _sockets(1 << (_INFO - 1), states):
        if int.from_bytes(body[_MESSAGE.size - 4 : _MESSAGE.size], sys.byteorder) in inodes:
            wire = parse(body)
            wires += [wire] if wire else []
    return wires


def _sockets(extensions: int, states: int) -> Iterator[bytes]:
    """Yield the kernel's messages about TCP sockets of both families, bounded in number."""
    for family in (socket.AF_INET, socket.AF_INET6):
        request, read = _ASK.pack(family, socket.IPPROTO_TCP, extensions, 0, states), 0
        for bodies in answers(_SOCK_DIAG, _BY_FAMILY, request):
            read += len(bodies)
            yield from (body for body in bodies if len(body) >= _MESSAGE.size)
            if read >= MOST_SOCKETS:
                break


_LISTEN = 10


def listeners() -> set[int]:
    """Return the TCP ports of this network namespace on which anything listens; OSError."""
    return {int(end.rpartition(":")[2]) for end in listening_users()}


def listening_users() -> dict[str, int]:
    """Return the user id of each listener of this network namespace by `address:port`; OSError."""
    user_of: dict[str, int] = {}
    for fields in map(_MESSAGE.unpack_from, _sockets(0, 1 << _LISTEN)):
        source = fields[6][: 4 if fields[0] == socket.AF_INET else 16]
        user_of[_name(source, int.from_bytes(fields[4], "big"))] = fields[12]
    return user_of


def parse(body: bytes) -> Document | None:
    """Read one struct inet_diag_msg and its struct tcp_info; None if invalid."""
    if len(body) < _MESSAGE.size:
        return None
    fields = _MESSAGE.unpack_from(body)
    family, state, timer, retries = fields[:4]
    sport, dport = (int.from_bytes(port, "big") for port in fields[4:6])
    source, target = fields[6:8]
    _, unacked, _, inode = fields[10:]
    if family not in (socket.AF_INET, socket.AF_INET6) or state not in STATES:
        return None
    size = 4 if family == socket.AF_INET else 16
    info = attributes(body[_MESSAGE.size :]).get(_INFO, b"")
    return {
        "inode": inode,
        "local": _name(source[:size], sport),
        "peer": _name(target[:size], dport),
        "unacked": unacked,
        "retries": retries if timer == _RETRANSMIT else 0,
        **_counters(info),
    }


def _counters(info: bytes) -> dict[str, int]:
    """Read the counters of struct tcp_info, which grows with newer kernels."""
    counters = {}
    if len(info) >= 104:  # noqa: PLR2004 (the offsets of linux/tcp.h)
        sent_ms, _, received_ms = struct.unpack_from("=III", info, 44)
        counters["quiet_ms"] = min(sent_ms, received_ms)
        counters["resent"] = struct.unpack_from("=I", info, 100)[0]
    if len(info) >= 136:  # noqa: PLR2004
        counters["sent"], counters["received"] = struct.unpack_from("=QQ", info, 120)
    return counters


def _name(address: bytes, port: int) -> str:
    if len(address) == 16 and address[:12] == b"\0" * 10 + b"\xff\xff":  # noqa: PLR2004
        address = address[12:]  # IPv4 through a socket of both families
    if len(address) == 4:  # noqa: PLR2004
        return f"{socket.inet_ntop(socket.AF_INET, address)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, address)}]:{port}"


_GET_LINK = 18
_BODY = struct.Struct("=BxHiII")
_NAME, _LINK, _STATS = 3, 18, 23
_KIND = 1
"""IFLA_INFO_KIND: what the kernel made the interface as (veth, gre, tun); a NIC has none."""

_UP, _LOOPBACK, _LOWER_UP = 0x1, 0x8, 0x10000
_ERRORS = {"rx_errors": 4, "tx_errors": 5, "rx_crc_errors": 12, "tx_carrier_errors": 17}
"""Positions in struct rtnl_link_stats64."""

_STATS_LEAST = 18 * 8
MOST_INTERFACE_ROWS = 256


def look_interfaces(*, hardware: bool = False) -> dict[str, Document]:
    """Return one `PortLook` for each interface by name, all counters since its start; OSError.

    `hardware`: only real devices. Any user can make the others in a network of his own, and break
    them there.
    """
    looks: dict[str, Document] = {}
    for bodies in answers(socket.NETLINK_ROUTE, _GET_LINK, _BODY.pack(0, 0, 0, 0, 0)):
        chosen = [body for body in bodies if not (hardware and _is_made(body))]
        looks.update({port["name"]: port for port in map(parse_interfaces, chosen) if port})
        if len(looks) >= MOST_INTERFACE_ROWS:
            break
    return looks


def _is_made(body: bytes) -> bool:
    return _KIND in attributes(attributes(body[_BODY.size :]).get(_LINK, b""))


def parse_interfaces(body: bytes) -> dict[str, Any] | None:
    """Read one struct ifinfomsg and its attributes; None for the loopback, or if invalid."""
    if len(body) < _BODY.size:
        return None
    flags = _BODY.unpack_from(body)[3]
    raw = attributes(body[_BODY.size :])
    stats = raw.get(_STATS, b"")
    if flags & _LOOPBACK or _NAME not in raw or len(stats) < _STATS_LEAST:
        return None
    counts = struct.unpack_from("=18Q", stats)
    return {
        "name": safe_name(os.fsdecode(raw[_NAME].rstrip(b"\0"))),
        "up": bool(flags & _UP and flags & _LOWER_UP),
        "received": counts[2],
        "errors": {name: counts[at] for name, at in _ERRORS.items()},
    }


def proc_connections(pid: int) -> list[Document]:
    """Return the connections of a process's namespace; OSError without permission."""
    os.close(os.open(f"/proc/{pid}/net/tcp", os.O_RDONLY))
    wires = map(parse_proc_tcp, itertools.islice(procfs.tcp(pid), MOST_SOCKETS))
    return [wire for wire in wires if wire]


def proc_listeners(pid: int) -> set[int]:
    """The ports on which something listens in the network namespace of a process."""
    rows = itertools.islice(procfs.tcp(pid), MOST_SOCKETS)
    return {row.port for row in rows if row.state == procfs.LISTEN}


def parse_proc_tcp(row: procfs.Socket) -> Document | None:
    """Read one line of the table; None for a socket without a process, or if invalid."""
    with contextlib.suppress(ValueError, OSError, LookupError, struct.error):
        timer, retries = int(row.fields[5].partition(":")[0], 16), int(row.fields[6], 16)
        if row.inode != "0" and int(row.state, 16) in STATES:
            return {
                "inode": int(row.inode),
                "local": _address_of(row.fields[1]),
                "peer": _address_of(row.fields[2]),
                "unacked": int(row.fields[4].partition(":")[0], 16),
                "retries": retries if timer == _RETRANSMIT else 0,
            }
    return None


def _address_of(text: str) -> str:
    """Format "0100007F:07E8": the address is in 32-bit words of the machine's byte order."""
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    return _name(b"".join(struct.pack("=I", word) for word in words), int(port, 16))


_NEW_NET = 0x40000000
"""CLONE_NEWNET: the kind of namespace."""

MOST, MOST_IN_ALL = 512, 8192
"""Most connections of a rank, and of all together."""


def look(pids: list[int]) -> dict[str, Any]:
    """Return `wires` by pid (as text), `ports` by name, and `problems`; only in a child.

    It enters the ranks' network namespace if that differs and it has permission: there the kernel
    reports most. Otherwise it reads /proc/PID/net, which has less.
    """
    most = min(MOST, max(16, MOST_IN_ALL // max(1, len(pids))))
    document: dict[str, Any] = {"wires": {}, "ports": {}, "problems": []}
    own = namespace(os.getpid())
    spaces: dict[str, list[int]] = {own: []}
    for pid in pids:
        spaces.setdefault(namespace(pid) or own, []).append(pid)
    for space, members in spaces.items():  # its own network first: it does not return there
        if not members:
            continue
        inside = space == own or enter(members[0])
        with contextlib.suppress(OSError):
            if inside:
                interfaces = look_interfaces(hardware=space != own)
                document["ports"] = {**interfaces, **document["ports"]}
        files = {pid: procfs.open_files(pid) for pid in members}
        owned = {pid: opened.sockets if opened else set() for pid, opened in files.items()}
        inodes = {int(inode) for inodes_of_pid in owned.values() for inode in inodes_of_pid}
        wire_of = _connections(members[0], document["problems"], inodes if inside else None)
        with contextlib.suppress(OSError):
            ports = listeners() if inside else proc_listeners(members[0])
            for wire in wire_of.values():
                wire["served"] = int(wire["local"].rpartition(":")[2]) in ports
        for pid, inodes_of_pid in owned.items():
            wires = [wire_of[inode] for inode in sorted(inodes_of_pid) if inode in wire_of]
            document["wires"][str(pid)] = wires[:most]
    if not document["ports"]:
        with contextlib.suppress(OSError):
            document["ports"] = look_interfaces()
    return document


def _connections(pid: int, problems: list[str], inodes: set[int] | None) -> dict[str, Document]:
    """Return the connections by inode as text: the kernel's of these inodes, else /proc's."""
    try:
        wires = proc_connections(pid) if inodes is None else connections(inodes)
    except OSError as error:
        try:
            wires = proc_connections(pid)
        except OSError:
            problems.append(f"connections of process {pid}: {words(error)}")
            return {}
    return {str(wire["inode"]): wire for wire in wires}


def namespace(pid: int) -> str:
    """Return the name of its network namespace; "" without permission."""
    return procfs.link(pid, "ns/net")


def enter(pid: int) -> bool:
    """Move this process into the network namespace of another; needs CAP_SYS_ADMIN."""
    try:
        handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    except OSError:
        return False
    try:
        import ctypes  # only needed for another namespace

        return int(ctypes.CDLL(None).setns(handle, _NEW_NET)) == 0
    except (ImportError, OSError, AttributeError):
        return False
    finally:
        os.close(handle)


def changes(before: list[Document], after: list[Document]) -> list[Document]:
    """Return a `Connection` of the document for each that exists at the second look."""
    first = {wire["inode"]: wire for wire in before}
    return [_change(first.get(wire["inode"], {}), wire) for wire in after]


def _change(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    document = {name: after[name] for name in ("local", "peer", "unacked", "retries")}
    document["served"] = after.get("served", False)
    for name in ("sent", "received", "resent"):
        if name in after:
            start = before.get(name, 0 if not before else after[name])
            document[name] = max(0, after[name] - start)
    if "quiet_ms" in after:
        document["quiet_s"] = round(after["quiet_ms"] / 1000, 3)
    return document
