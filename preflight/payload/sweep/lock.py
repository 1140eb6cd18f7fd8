"""Two runs on one node at once would measure each other: the second one stays out.

The lock is an abstract socket: it holds no file, and the kernel drops it with its process. Network
namespaces have their own; `name` tells apart nodes that share a machine.

Abstract sockets are listed in /proc/net/unix, and whoever has one open shows it in /proc/PID/fd.
"""

from __future__ import annotations

import os
import socket
import time

from probe.procfs import Stat, look

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


_AGAIN_S = 1.0
"""Between two looks: a process that works may be in D state for a moment."""

_STUCK = {
    "T": ("is stopped", "kill -9 {0}"),
    "t": ("is stopped by a debugger", "kill -9 {0}"),
    "D": ("waits in a driver", "no signal ends it: look for Xid in dmesg, drain and reboot"),
}


def words(address: str) -> tuple[str, str]:
    """Return why a node cannot be had, and what to do if waiting is in vain ("" if it is not)."""
    found = _oldest(address)
    if found is None:
        return "another preflight run measures this node; wait for it", ""
    time.sleep(_AGAIN_S)
    again = look(found.pid)
    who = f"pid {found.pid}, since {found.age_s():.0f} s"
    if again is None or again.state != found.state or found.state not in _STUCK:
        return f"another preflight run measures this node ({who}); wait for it", ""
    state, advice = _STUCK[found.state]
    error = f"a process of an earlier preflight run ({who}) {state} and still holds this node"
    return error, advice.format(found.pid)


def _oldest(address: str) -> Stat | None:
    """Return the first of the processes that have the socket; None where they are hidden."""
    inode = _inode(address)
    stats = [
        stat
        for name in os.listdir("/proc")
        if inode and name.isdigit() and _has(name, f"socket:[{inode}]")
        for stat in (look(int(name)),)
        if stat is not None
    ]
    return min(stats, key=lambda stat: stat.start) if stats else None


def _inode(address: str) -> str:
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            lines = [line.split(maxsplit=7) for line in file]
    except OSError:
        return ""
    shown = address.replace("\0", "@")
    return next((line[6] for line in lines if line[7:] and line[7].rstrip("\n") == shown), "")


def _has(pid: str, target: str) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        return any(os.readlink(f"{folder}/{name}") == target for name in os.listdir(folder))
    except OSError:
        return False
