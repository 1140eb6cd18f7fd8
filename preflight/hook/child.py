"""What the hook leaves behind: one line for the system's log, and only where something is wrong.

Standard library only: it must be able to say that the rest cannot even be imported.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final, Literal

SYSLOG: Final = "/dev/log"
LONGEST: Final = 900
"""Characters of a line: what RFC 3164 lets every relay of syslog carry, less its head."""

WAIT_S: Final = 0.5
"""A log daemon that stands still must not keep a job waiting."""

Level = Literal["info", "warning", "error"]

_DAEMON: Final = 3 << 3
_SEVERITIES: Final[dict[Level, int]] = {"error": 3, "warning": 4, "info": 6}
"""Facility and severities of RFC 3164."""


def say(text: str, level: Level = "warning", to: str = "syslog", device: str = SYSLOG) -> None:
    """Write one line to syslog, or to standard error where there is none. Never raises."""
    line = one_line(text)
    if to == "syslog" and _syslog(line, level, device):
        return
    with contextlib.suppress(OSError, ValueError):
        os.write(2, f"preflight: {line}\n".encode("ascii", "replace"))


def one_line(text: str) -> str:
    """Make it one line of printable ASCII, of bounded length: a node may be hostile."""
    kept = text[: 4 * LONGEST].encode("ascii", "replace").decode()
    kept = " ".join("".join(char if char.isprintable() else " " for char in kept).split())
    return kept if len(kept) <= LONGEST else f"{kept[: LONGEST - 3]}..."


def _syslog(line: str, level: Level, device: str) -> bool:
    """Whether the system's log took the line.

    logging's own handler connects anew where sending took too long, and then waits without end.
    """
    head = f"<{_DAEMON | _SEVERITIES[level]}>preflight[{os.getpid()}]: "
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.settimeout(WAIT_S)
            out.connect(device)
            out.send((head + line).encode("ascii", "replace"))
    except OSError:
        return False
    return True
