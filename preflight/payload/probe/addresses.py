"""Every address of every interface, asked of the kernel itself: no tool need be installed."""

from __future__ import annotations

import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Found = dict[int, list[str]]

_GET_ADDRESS = 22
_NEW_ADDRESS = 20
_DONE = 3
_ERROR = 2
_REQUEST_DUMP = 0x301
_LOCAL, _ADDRESS = 2, 1
"""IFA_LOCAL is our own end; IFA_ADDRESS is that too, but the far end on a point-to-point line."""

_WAIT_S = 2.0
_HEAD = struct.Struct("=IHHII")
_BODY = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def by_index() -> Found:
    """Return "10.77.0.1/24" and the like by interface index, IPv4 first; OSError if refused."""
    found: Found = {}
    for family in _FAMILIES:
        for data in _dump(family):
            _take(data, family, found)
    return found


def _dump(family: int) -> Iterator[bytes]:
    """Yield the body of each message of RTM_GETADDR's answer, rtnetlink(7)."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(_WAIT_S)
        ask = _BODY.pack(family, 0, 0, 0, 0)
        size = _HEAD.size + len(ask)
        kernel.send(_HEAD.pack(size, _GET_ADDRESS, _REQUEST_DUMP, 1, 0) + ask)
        while True:
            data = kernel.recv(1 << 16)
            while len(data) >= _HEAD.size:
                size, kind, _, _, _ = _HEAD.unpack_from(data)
                if kind in (_DONE, _ERROR) or size < _HEAD.size:
                    return
                if kind == _NEW_ADDRESS:
                    yield data[_HEAD.size : size]
                data = data[(size + 3) & ~3 :]


def _take(data: bytes, family: int, found: Found) -> None:
    if len(data) < _BODY.size:
        return
    its_family, bits, _, _, index = _BODY.unpack_from(data)
    if its_family != family:
        return
    raw = {}
    data = data[_BODY.size :]
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        if size < _ATTRIBUTE.size:
            break
        raw[kind] = data[_ATTRIBUTE.size : size]
        data = data[(size + 3) & ~3 :]
    address = raw.get(_LOCAL) or raw.get(_ADDRESS)
    if address and len(address) == (4 if family == socket.AF_INET else 16):
        found.setdefault(index, []).append(f"{socket.inet_ntop(family, address)}/{bits}")
