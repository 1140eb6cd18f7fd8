"""Whoever computes here while we measure is measured with us: foreign processes and their share."""

from __future__ import annotations

import os

import children

from . import host_files
from .describe import ancestors
from .stat import TICKS
from .text import clean
from .users import Users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = 3
"""Processes named."""

_DOORS = (
    b"systemd",
    b"init",
    b"sshd",
    b"sshd-session",
    b"slurmstepd",
    b"slurmd",
    b"cron",
    b"crond",
)
"""Where a login or a job begins: what runs beside it below these is somebody else's."""

_LEAST = 15
"""Fields of a stat line after the name, up to the children's times."""


class Look:
    """How much CPU time every process had used at one moment; kernel threads are no one's."""

    def __init__(self) -> None:
        self.at_s = _now()
        self.used: dict[tuple[int, int], float] = {}
        self.names: dict[int, bytes] = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            self._take(int(name))

    def _take(self, pid: int) -> None:
        try:
            with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                _, _, rest = file.read(4096).partition(b"(")
        except OSError:
            return
        comm, _, rest = rest.rpartition(b") ")
        fields = rest.split()
        if len(fields) > _LEAST + 4 and not int(fields[6]) & 0x00200000:
            self.names[pid] = comm
            self.used[pid, int(fields[19])] = (int(fields[11]) + int(fields[12])) / TICKS


def read(before: Look, run_pid: int) -> dict[str, Any]:
    """Return `Load` since that look, without what belongs to this run or its login."""
    after = Look()
    seconds = max(after.at_s - before.at_s, 1 / TICKS)
    ours = _ours(run_pid, after.names)
    shares = [
        (spent / seconds, pid)
        for (pid, start), used in after.used.items()
        if pid not in ours
        for spent in [used - before.used.get((pid, start), used)]
        if spent > 0
    ]
    return {
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "one_minute": float(host_files.lines("/proc/loadavg")[0].split()[0]),
        "foreign_cpus": round(sum(share for share, _ in shares), 2),
        "looked_s": round(seconds, 3),
        "busiest": [_worker(pid, share, after) for share, pid in sorted(shares)[: -MOST - 1 : -1]],
    }


def _worker(pid: int, share: float, look: Look) -> dict[str, Any]:
    users = Users(patient=False)
    try:
        user = users.name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        user = "?"
    return {
        "pid": pid,
        "name": clean(look.names[pid]),
        "user": clean(user),
        "cpus": round(share, 2),
    }


def _ours(run_pid: int, names: dict[int, bytes]) -> set[int]:
    """Name this run, what it was started from up to the door it came in by, and all below that."""
    top = run_pid
    for pid in ancestors(run_pid):
        if names.get(pid) in _DOORS:
            break
        top = pid
    return {top, *children.below(top), *ancestors(run_pid)}


def _now() -> float:
    import time

    return time.monotonic()
