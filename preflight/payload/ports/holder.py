"""Says who has a port, since when, and whether it is us: "address in use" alone helps nobody."""

from __future__ import annotations

import os
import time

from probe import guard, procfs, sockets, stat
from probe.describe import Describer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOOKUP_S = 4.0
"""Reading a stuck process can hang: the lookup runs in a child with this long."""


def find(port: int) -> dict[str, Any]:
    """Return `holder` (a `Process`, or None) and `lingering` of the document for a taken port."""
    asked = guard.spawn(_find, port, os.getpid())
    answered = asked.listen(time.monotonic() + LOOKUP_S)
    asked.dismiss(kill=not answered)
    try:
        found: dict[str, Any] = asked.value()
    except guard.BrokenError:
        return {"holder": None, "lingering": 0}
    return found


def _find(port: int, run_pid: int) -> dict[str, Any]:
    here = [one for one in sockets.tcp() if one.port == port]
    open_ones = [one for one in here if one.inode != "0"]
    open_ones.sort(key=lambda one: one.state != sockets.LISTEN)
    holder = _holder(open_ones[0], run_pid) if open_ones else None
    return {"holder": holder, "lingering": len(here) - len(open_ones)}


def _holder(held: sockets.Socket, run_pid: int) -> dict[str, Any]:
    everyone = stat.everyone()
    describer = Describer(everyone, run_pid, lambda _: False, lambda _: None)
    for pid in sorted(everyone):
        opened = procfs.opened(pid)
        if opened and held.inode in opened.sockets:
            process = describer.describe(everyone[pid], procfs.environ(pid))
            process["listens"] = [held.port] if held.state == sockets.LISTEN else []
            return process
    return {
        "pid": 0,
        "ppid": 0,
        "state": "",
        "user": describer.user(held.uid),
        "command": "",
        "age_s": 0.0,
        "listens": [held.port] if held.state == sockets.LISTEN else [],
    }
