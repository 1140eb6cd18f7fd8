"""The common parts of a node's agents, for sweep and burn-in: controller messages, and the lock.

Two runs on one node at once would disturb each other: the second one does not start. The lock is an
abstract socket: it needs no file, and the kernel drops it with its process. Each network namespace
has its own; `name` distinguishes nodes that share a machine.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from typing import Any

import children
import start
from probe import node_files, procfs
from probe.processes import Allowances
from start import Emit, Read

from . import process_groups

_LAST_WORDS_S = 0.5


class Orders:
    """Sorts the controller's messages into queues."""

    def __init__(self) -> None:
        self.go: queue.Queue[dict[str, Any]] = queue.Queue()
        self.more: queue.Queue[dict[str, Any]] = queue.Queue()
        """Rounds after the last one."""
        self.shared: queue.Queue[dict[str, Any]] = queue.Queue()
        """Lease renewals and the numbers of lost nodes, for the store, if we host it."""

    def take(self, message: dict[str, Any]) -> None:
        """Take one message; "finish" is the last one."""
        if "finish" in message:
            children.leave()
        elif "go" in message:
            self.go.put(message["go"])
        elif "more" in message:
            self.more.put(message["more"])
            self.shared.put({"rounds": len(message["more"]["turns"])})
        else:
            self.shared.put(message)


def serve_controller(
    request: dict[str, Any], read_line: Read, emit: Emit
) -> tuple[Orders, start.Lease]:
    """Start threads that read orders, send heartbeats, and end the process when its time is up."""
    orders, lease = Orders(), start.Lease(request.get("lease_s"))
    for work, arguments in (
        (_attend, (read_line, lease, orders, emit)),
        (_beat, (lease, emit)),
        (_end_after, (request["deadline_s"],)),
    ):
        threading.Thread(target=work, args=arguments, daemon=True).start()
    return orders, lease


def _attend(read_line: Read, lease: start.Lease, orders: Orders, emit: Emit) -> None:
    """Read the controller's messages; end the process when the controller is gone."""
    status = start.BROKE
    try:
        cause = start.attend(read_line, lease, orders.take)
        status = start.DONE if cause == start.CLOSED else start.LAPSED
        if cause == process_groups.STORE:
            error = f"the sweep's store was silent for {lease.seconds:g} s"
            lapsed = {"event": "lapsed", "error": error}
            last_words = threading.Thread(target=emit, args=(lapsed,), daemon=True)
            last_words.start()
            last_words.join(_LAST_WORDS_S)  # the controller may have stopped reading
    finally:
        children.leave(status)


def _beat(lease: start.Lease, emit: Emit) -> None:
    """Send heartbeats: the controller cannot see that a silent connection is dead."""
    if lease.seconds is None:
        return
    try:
        while True:
            time.sleep(lease.seconds / start.BEATS)
            emit({"event": "alive"})
    except start.Gone:
        children.leave()


def _end_after(deadline_s: float) -> None:
    time.sleep(deadline_s)
    children.leave()


PATIENCE_S = 5.0
"""An earlier sweep may still be ending: its processes take a second or two."""

_PAUSE_S = 0.1


def address(name: str) -> str:
    """The address of a node's lock."""
    return "\0preflight-load-" + name[:80]


def claim(name: str) -> socket.socket | None:
    """Lock the node until the returned socket closes; None if another run has locked it."""
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


_RECHECK_S = 1.0
"""Between two looks: a working process may be in D state for a moment."""

_STUCK = {
    "T": ("is stopped", "kill -9 {0}"),
    "t": ("is stopped by a debugger", "kill -9 {0}"),
    "D": ("waits in a driver", "no signal ends it: look for Xid in dmesg, drain and reboot"),
}


def lock_holder(name: str) -> tuple[str, str]:
    """Return why a node is locked, and what to do if waiting does not help (else "")."""
    oldest = _oldest(address(name))
    if oldest is None:
        return "another preflight run measures this node; wait for it", ""
    time.sleep(_RECHECK_S)
    later = procfs.look(oldest.pid)
    holder = f"pid {oldest.pid}, started {oldest.age_s():.0f} s ago"
    if later is None or later.state != oldest.state or oldest.state not in _STUCK:
        return f"another preflight run measures this node ({holder}); wait for it", ""
    state, advice = _STUCK[oldest.state]
    error = f"a process of an earlier preflight run ({holder}) {state} and still holds this node"
    return error, advice.format(oldest.pid)


def _oldest(address: str) -> procfs.Stat | None:
    """Return the oldest process that has the socket; None where processes are hidden."""
    inode, open_files = _inode(address), Allowances().open_files
    opened = ((pid, open_files(pid)) for pid in procfs.pids() if inode)
    stats = (procfs.look(pid) for pid, files in opened if files and inode in files.sockets)
    return min(filter(None, stats), key=lambda stat: stat.start, default=None)


def _inode(address: str) -> str:
    lines = (
        line.split(maxsplit=7) for line in node_files.attempt_lines("/proc/net/unix", 64 << 20)
    )
    printed = address.replace("\0", "@")
    return next((line[6] for line in lines if line[7:] == [printed]), "")
