"""The same connections from /proc/PID/net/tcp: less is told, but of any network namespace."""

from __future__ import annotations

import socket
import struct

from .inet_diag import STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LEAST = 10
_RETRANSMIT, _PROBE = "01", "04"
_LIMIT = 16 << 20


def connections(pid: int) -> list[dict[str, Any]]:
    """Return the connections of a process's namespace; OSError where it may not be looked at."""
    found: list[dict[str, Any]] = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", "rb") as file:
            found += parse(file.read(_LIMIT).decode("ascii", "replace"))
    return found


def parse(text: str) -> list[dict[str, Any]]:
    """Read the table; lines that are none of it are left out."""
    wires = (_wire(line.split()) for line in text.splitlines())
    return [wire for wire in wires if wire is not None and wire["inode"]]


def _wire(fields: list[str]) -> dict[str, Any] | None:
    try:
        if len(fields) < _LEAST or not fields[0].endswith(":"):
            return None
        state = STATES.get(int(fields[3], 16))
        unacked, _, unread = fields[4].partition(":")
        timer, retries = fields[5].partition(":")[0], int(fields[6], 16)
        if state is None:
            return None
        return {
            "inode": int(fields[9]),
            "local": _name(fields[1]),
            "peer": _name(fields[2]),
            "state": state,
            "unacked": int(unacked, 16),
            "waiting": int(unread, 16),
            "retries": retries if timer == _RETRANSMIT else 0,
            "probes": retries if timer == _PROBE else 0,
        }
    except (ValueError, OSError, struct.error):
        return None


def _name(text: str) -> str:
    """Spell "0100007F:07E8": the address is in 32-bit words of the machine's own order."""
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    raw = b"".join(struct.pack("=I", word) for word in words)
    number = int(port, 16)
    if len(raw) == 16 and raw[:12] == b"\0" * 10 + b"\xff\xff":  # noqa: PLR2004
        raw = raw[12:]
    if len(raw) == 4:  # noqa: PLR2004
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{number}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{number}"
