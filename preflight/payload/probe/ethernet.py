"""What the link of one interface agreed on: speeds of both ends, duplex, and broken frames."""

from __future__ import annotations

import array
import fcntl
import os
import re
import socket
import struct

from .text import attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SIOCETHTOOL = 0x8946
_GET_LINK_SETTINGS = 0x4C
_HEAD = "=II7Bb4B7I"
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


def read(name: str, path: str) -> dict[str, Any]:
    """Return an `Ethernet` document of the interface whose folder in sysfs this is."""
    most, partner = _modes(name)
    duplex = attempt(path + "/duplex")
    return {
        "duplex": duplex if duplex in ("full", "half") else "",
        "most_mbits": most,
        "partner_mbits": partner or None,
        "mtu_wanted": _wanted(name),
        "counters": _counters(path + "/statistics/"),
    }


def lower(path: str) -> list[str]:
    """Return the interfaces that an interface is made of: a bond's, a bridge's, a VLAN's."""
    try:
        return sorted(name[6:] for name in os.listdir(path) if name.startswith("lower_"))[:32]
    except OSError:
        return []


def fastest(mask: int) -> int:
    """Return the speed of the fastest link mode of a mask, Mb/s; 0 where there is none."""
    found = (mbits for mbits, first, last in _SPEEDS if mask >> first & (1 << last - first + 1) - 1)
    return max(found, default=0)


def _modes(name: str) -> tuple[int | None, int | None]:
    """Return the fastest mode of the device and of the other end; None where it does not say."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            words = -_ask(any_socket, name, 0)[_WORDS_AT]
            if words <= 0:  # the kernel tells how long its masks are, as a negative
                return None, None
            answer = _ask(any_socket, name, words)
    except OSError:
        return None, None
    masks = answer[len(answer) - 3 * words :]
    supported, _, partner = (_mask(masks[at * words : (at + 1) * words]) for at in range(3))
    return fastest(supported), fastest(partner)


def _ask(any_socket: socket.socket, name: str, words: int) -> list[int]:
    form = f"{_HEAD}{3 * words}I"
    head = [_GET_LINK_SETTINGS, 0, *[0] * 7, words, *[0] * (4 + 7 + 3 * words)]
    asked = array.array("B", struct.pack(form, *head))
    address, _ = asked.buffer_info()
    fcntl.ioctl(any_socket, _SIOCETHTOOL, struct.pack("16sP", name.encode()[:15], address))
    return list(struct.unpack(form, asked.tobytes()))


def _mask(words: list[int]) -> int:
    return sum(word << 32 * at for at, word in enumerate(words))


def _wanted(name: str) -> int | None:
    """Return the MTU that the machine's configuration asks for; None where it says nothing."""
    found = re.search(r"(?:^| )MTU=[\"']?([0-9]{2,5})\b", attempt(IFCFG + os.path.basename(name)))
    return int(found.group(1)) if found else None


def _counters(folder: str) -> list[dict[str, Any]] | None:
    found = [(name, attempt(folder + name)) for name in _COUNTED]
    told = [(name, min(int(text), 2**53)) for name, text in found if text.isdigit()]
    return [{"name": name, "value": value} for name, value in told if value] if told else None
