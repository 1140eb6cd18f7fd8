"""Two runs on one node at once would measure each other: the second one stays out.

The lock is an abstract socket: it holds no file, and the kernel drops it with its process. Network
namespaces have their own; `name` tells apart nodes that share a machine.
"""

from __future__ import annotations

import socket
import time

PATIENCE_S = 5.0
"""An earlier sweep may be leaving still: its processes end within a second or two."""

_PAUSE_S = 0.1


def address(name: str) -> str:
    """Where the lock of that node is bound."""
    return "\0preflight-load-" + name[:80]


def claim(name: str) -> socket.socket | None:
    """Hold the node until the returned socket (or the process) goes; None if another run does."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    ends = time.monotonic() + PATIENCE_S
    while True:
        try:
            lock.bind(address(name))
        except OSError:
            if time.monotonic() > ends:
                lock.close()
                return None
            time.sleep(_PAUSE_S)
        else:
            return lock
