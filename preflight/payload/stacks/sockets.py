"""TCP connections as the kernel knows them, sock_diag(7): what is unacknowledged or resent."""

from __future__ import annotations

import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Wire = dict[str, Any]

STATES = {1: "established", 2: "connecting", 3: "accepting", 4: "closing", 5: "closing",
          8: "closed by peer", 9: "closing", 11: "closing"}  # fmt: skip
"""TCP states with somebody at this end; those without (TIME_WAIT) and listeners are left out."""

_SOCK_DIAG, _BY_FAMILY = 4, 20
_REQUEST_DUMP = 0x301
_DONE, _ERROR = 3, 2
_INFO = 2
"""INET_DIAG_INFO: the attribute with struct tcp_info."""

_HEAD = struct.Struct("=IHHII")
_ASK = struct.Struct("=BBBBI48x")
_MESSAGE = struct.Struct("=BBBB2s2s16s16sI8xIIIII")
_ATTRIBUTE = struct.Struct("=HH")
_RETRANSMIT, _PROBE = 1, 4
"""Timers: of the oldest segment without an answer, and of a peer that has closed its window."""

WAIT_S = 2.0
MOST = 200_000
"""Sockets looked at: a node that serves the web has more than we can use."""


def connections() -> list[Wire]:
    """Return every TCP connection of this network namespace, both families; OSError if refused."""
    found: list[Wire] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for body in _dump(family):
            wire = parse(body)
            if wire and wire["inode"]:
                found.append(wire)
            if len(found) >= MOST:
                return found
    return found


def _dump(family: int) -> Iterator[bytes]:
    wanted = sum(1 << number for number in STATES)
    ask = _ASK.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, wanted)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(WAIT_S)
        size = _HEAD.size + len(ask)
        kernel.send(_HEAD.pack(size, _BY_FAMILY, _REQUEST_DUMP, 1, 0) + ask)
        going = True
        while going:
            bodies, going = messages(kernel.recv(1 << 18))
            yield from bodies


def messages(data: bytes) -> tuple[list[bytes], bool]:
    """Take a datagram apart: the bodies of its messages, and whether more are to come.

    OSError where the kernel refuses; what is cut short ends it.
    """
    bodies: list[bytes] = []
    while len(data) >= _HEAD.size:
        size, kind, _, _, _ = _HEAD.unpack_from(data)
        if kind == _DONE or size < _HEAD.size or size > len(data):
            return bodies, False
        if kind == _ERROR:
            code = struct.unpack_from("=i", data, _HEAD.size)[0] if size >= _HEAD.size + 4 else 0
            raise OSError(-code, "the kernel refuses sock_diag")
        bodies.append(data[_HEAD.size : size])
        data = data[(size + 3) & ~3 :]
    return bodies, True


def parse(body: bytes) -> Wire | None:
    """Read one struct inet_diag_msg and its struct tcp_info; None for what is none."""
    if len(body) < _MESSAGE.size:
        return None
    fields = _MESSAGE.unpack_from(body)
    family, state, timer, retries, sport, dport, source, target = fields[:8]
    unread, unacked, _, inode = fields[10:]
    if family not in (socket.AF_INET, socket.AF_INET6) or state not in STATES:
        return None
    return {
        "inode": inode,
        "local": _name(family, source, sport),
        "peer": _name(family, target, dport),
        "state": STATES[state],
        "unacked": unacked,
        "waiting": unread,
        "retries": retries if timer == _RETRANSMIT else 0,
        "probes": retries if timer == _PROBE else 0,
        **_counted(_attribute(body[_MESSAGE.size :], _INFO)),
    }


def _attribute(data: bytes, wanted: int) -> bytes:
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        if size < _ATTRIBUTE.size:
            break
        if kind == wanted:
            return data[_ATTRIBUTE.size : size]
        data = data[(size + 3) & ~3 :]
    return b""


def _counted(info: bytes) -> dict[str, int]:
    """Read what struct tcp_info has of it; each kernel appends to that of the one before."""
    found = {}
    if len(info) >= 104:  # noqa: PLR2004 (the offsets of linux/tcp.h)
        sent_ms, _, received_ms = struct.unpack_from("=III", info, 44)
        found["quiet_ms"] = min(sent_ms, received_ms)
        found["resent"] = struct.unpack_from("=I", info, 100)[0]
    if len(info) >= 136:  # noqa: PLR2004
        found["sent"], found["received"] = struct.unpack_from("=QQ", info, 120)
    return found


def _name(family: int, address: bytes, port: bytes) -> str:
    number = struct.unpack("!H", port)[0]
    if family == socket.AF_INET:
        return f"{socket.inet_ntop(family, address[:4])}:{number}"
    if address[:12] == b"\0" * 10 + b"\xff\xff":  # IPv4 through a socket of both families
        return f"{socket.inet_ntop(socket.AF_INET, address[12:])}:{number}"
    return f"[{socket.inet_ntop(family, address)}]:{number}"
