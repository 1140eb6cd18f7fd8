"""One line per process decides what is worth a second look: /proc/PID/stat, and nothing dearer."""

from __future__ import annotations

import os
import time

PF_KTHREAD = 0x00200000
_LEAST = 20
"""Fields after `comm` up to the start time."""

TICKS = os.sysconf("SC_CLK_TCK")


class Stat:
    """What the kernel says of one process without touching its memory: this read cannot hang."""

    __slots__ = ("comm", "kernel", "pid", "ppid", "start", "state", "threads")

    def __init__(self, line: bytes) -> None:
        """Parse a line of /proc/PID/stat (proc(5)); ValueError for anything else.

        `comm` may itself hold blanks and parentheses, so it ends at the *last* one.
        """
        pid, opened, rest = line.partition(b" (")
        comm, closed, rest = rest.rpartition(b") ")
        fields = rest.split()
        if not (opened and closed and len(fields) >= _LEAST):
            raise ValueError("not a line of /proc/PID/stat")
        self.pid = int(pid)
        self.comm = comm
        self.state = fields[0].decode("ascii")
        self.ppid = int(fields[1])
        self.kernel = bool(int(fields[6]) & PF_KTHREAD)
        self.threads = max(0, int(fields[17]) - 1)
        """Threads besides the leader."""
        self.start = int(fields[19])
        """Clock ticks after boot; with the pid it names a process for good."""

    def age_s(self) -> float:
        """Seconds since it was started."""
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - self.start / TICKS)


def look(pid: int) -> Stat | None:
    """Return that process as it is now; None if it is gone."""
    try:
        handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        return Stat(os.read(handle, 4096))
    except (OSError, ValueError):
        return None
    finally:
        os.close(handle)


def everyone() -> dict[int, Stat]:
    """Return every process of this node (or this container), by pid."""
    found = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {stat.pid: stat for stat in found if stat}
