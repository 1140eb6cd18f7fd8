"""The interfaces a job may choose, and the kernel's own ports: wrong choices hang at the start."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct

from . import addresses, ethernet
from .text import attempt, clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = 64
"""Interfaces told: a node of many containers has hundreds; what can carry a job comes first."""

_UP, _LOOPBACK = 0x1, 0x8
"""IFF_UP and IFF_LOOPBACK, as sysfs prints them in `flags`."""

_SIOCETHTOOL = 0x8946
_GET_FEC = 0x50
_FEC = {1: "none", 2: "auto", 4: "off", 8: "rs", 16: "baser", 32: "llrs"}
"""ETHTOOL_FEC_* bits of linux/ethtool.h, in ethtool's words."""


def read(root: str, proc: str = "/proc/sys/net/ipv4") -> dict[str, Any]:
    """Return the `interfaces`, `ephemeral` and `reserved` of a `Network` document."""
    return {
        "interfaces": _interfaces(root),
        "ephemeral": _range(attempt(proc + "/ip_local_port_range")),
        "reserved": attempt(proc + "/ip_local_reserved_ports"),
    }


def _interfaces(root: str) -> list[dict[str, Any]] | None:
    """Return all of this network namespace by index; None without sysfs, OSError if refused."""
    folder = root + "/class/net"
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return None
    addressed = addresses.by_index()
    found: list[dict[str, Any]] = []
    for name in names:
        path = f"{folder}/{name}"
        index = _number(path + "/ifindex")
        if index is None:  # such as bonding_masters, which is a file
            continue
        one = _interface(name, path, addressed.get(index, []))
        found.append({"index": index, **one})
    found.sort(key=_rating)
    return sorted(found[:MOST], key=lambda one: int(one["index"]))


def _rating(one: dict[str, Any]) -> tuple[bool, bool, int]:
    """Sort key: what has an address of its own, then devices, then ends of containers' cables."""
    routable = any(not its.startswith("fe80") for its in one["addresses"])
    return not routable, not one["physical"], int(one["index"])


def _interface(name: str, path: str, its: list[str]) -> dict[str, Any]:
    flags = attempt(path + "/flags")
    bits = int(flags, 16) if flags.startswith("0x") else 0
    physical = os.path.exists(path + "/device")
    speed = _number(path + "/speed")
    loopback = bool(bits & _LOOPBACK)
    return {
        "name": clean(name),
        "up": bool(bits & _UP),
        "operstate": attempt(path + "/operstate"),
        "loopback": loopback,
        "physical": physical,
        "mtu": _number(path + "/mtu"),
        "speed_mbits": speed or None,
        "carrier_downs": _number(path + "/carrier_down_count"),
        "fec": _fec(name) if physical else "",
        "master": clean(os.path.basename(os.path.realpath(path + "/master")))
        if os.path.exists(path + "/master")
        else "",
        "lower": [clean(one) for one in ethernet.lower(path)],
        "ethernet": None if loopback or not (its or physical) else ethernet.read(name, path),
        "addresses": its,
    }


def _number(path: str) -> int | None:
    """Return a count that a file of sysfs holds; None for -1, "unknown" and what is not there."""
    text = attempt(path)
    return int(text) if text.isdigit() else None


def _range(text: str) -> list[int] | None:
    words = text.split()
    if len(words) != len(("first", "last")) or not all(word.isdigit() for word in words):
        return None
    return [int(word) for word in words]


def _fec(name: str) -> str:
    """Return the forward error correction in use; "" where the driver does not tell."""
    asked = array.array("B", struct.pack("=IIII", _GET_FEC, 0, 0, 0))
    address, _ = asked.buffer_info()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCETHTOOL, struct.pack("16sP", name.encode()[:15], address))
    except OSError:
        return ""
    return _FEC.get(struct.unpack("=IIII", asked.tobytes())[1], "")
