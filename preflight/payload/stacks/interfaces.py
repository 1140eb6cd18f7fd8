"""What the interfaces of a network namespace have carried, asked of the kernel: rtnetlink(7)."""

from __future__ import annotations

import socket
import struct

from probe.text import clean

from .inet_diag import WAIT_S, messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_GET_LINK, _REQUEST_DUMP = 18, 0x301
_HEAD = struct.Struct("=IHHII")
_BODY = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")
_NAME, _STATS, _DOWNS = 3, 23, 48
_UP, _LOOPBACK, _LOWER_UP = 0x1, 0x8, 0x10000
_ERRORS = {"rx_errors": 4, "tx_errors": 5, "rx_crc_errors": 12, "tx_carrier_errors": 17}
"""Places in struct rtnl_link_stats64."""

_STATS_LEAST = 18 * 8
MOST = 256


def look() -> dict[str, dict[str, Any]]:
    """Return one `PortLook` for each interface by name, all counters since its start; OSError."""
    found: dict[str, dict[str, Any]] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(WAIT_S)
        ask = _BODY.pack(0, 0, 0, 0, 0)
        kernel.send(_HEAD.pack(_HEAD.size + len(ask), _GET_LINK, _REQUEST_DUMP, 1, 0) + ask)
        going = True
        while going and len(found) < MOST:
            bodies, going = messages(kernel.recv(1 << 18))
            found.update({one["name"]: one for one in map(parse, bodies) if one})
    return found


def parse(body: bytes) -> dict[str, Any] | None:
    """Read one struct ifinfomsg and its attributes; None for the loopback and what is none."""
    if len(body) < _BODY.size:
        return None
    flags = _BODY.unpack_from(body)[3]
    raw: dict[int, bytes] = {}
    data = body[_BODY.size :]
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        if size < _ATTRIBUTE.size:
            break
        raw[kind] = data[_ATTRIBUTE.size : size]
        data = data[(size + 3) & ~3 :]
    stats, downs = raw.get(_STATS, b""), raw.get(_DOWNS, b"")
    if flags & _LOOPBACK or _NAME not in raw or len(stats) < _STATS_LEAST:
        return None
    counts = struct.unpack_from("=18Q", stats)
    return {
        "name": clean(raw[_NAME].rstrip(b"\0")),
        "up": bool(flags & _UP and flags & _LOWER_UP),
        "received": counts[2],
        "sent": counts[3],
        "errors": {name: counts[at] for name, at in _ERRORS.items()},
        "lost_link": struct.unpack_from("=I", downs)[0] if len(downs) >= 4 else None,  # noqa: PLR2004
    }
