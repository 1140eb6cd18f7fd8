"""What the kernel tells of a process for a few microseconds: /proc, read by the handful."""

from __future__ import annotations

import os
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_LONGEST = 1 << 20
_STATE, _PARENT, _MINFLT, _UTIME, _STIME, _START = 0, 1, 7, 11, 12, 19
"""Fields of /proc/PID/stat, counted from the one behind the name in brackets."""


class Reading(NamedTuple):
    """One look at a process; each number is what it has come to since its start."""

    state: str
    started: int
    """In clock ticks since boot: with the pid, who it is."""
    cpu_s: float
    """Of all its threads."""
    faults: int
    """Pages that it touched for the first time, none of them from a disk."""
    switches: int
    """How often its main thread gave up the CPU by itself."""
    calls: int
    """Reads and writes of files and pipes; 0 where the kernel does not let us see."""
    moved: int
    """Bytes of these."""


def read(pid: int) -> Reading | None:
    """Look at one; None when it has gone."""
    try:
        stat = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        status = _text(f"/proc/{pid}/status")
    except OSError:
        return None
    try:
        io = dict(line.split(": ") for line in _text(f"/proc/{pid}/io").splitlines())
    except OSError:
        io = {}
    if len(stat) <= _START:
        return None
    return Reading(
        state=stat[_STATE],
        started=int(stat[_START]),
        cpu_s=(int(stat[_UTIME]) + int(stat[_STIME])) / _TICKS,
        faults=int(stat[_MINFLT]),
        switches=int(_field(status, "voluntary_ctxt_switches") or 0),
        calls=int(io.get("syscr", 0)) + int(io.get("syscw", 0)),
        moved=int(io.get("rchar", 0)) + int(io.get("wchar", 0)),
    )


def pending(pid: int) -> frozenset[int]:
    """Signals that were sent to a process as a whole, and that it has not taken."""
    try:
        bits = int(_field(_text(f"/proc/{pid}/status"), "ShdPnd") or "0", 16)
    except OSError:
        return frozenset()
    return frozenset(number + 1 for number in range(64) if bits >> number & 1)


def environ(pid: int) -> dict[str, str]:
    """What a process was started with; empty where that is not ours to read."""
    try:
        text = _text(f"/proc/{pid}/environ")
    except OSError:
        return {}
    return dict(one.partition("=")[::2] for one in text.split("\0") if "=" in one)


def name(pid: int) -> str:
    """Its name, as `ps` tells it; empty when it has gone."""
    try:
        return _text(f"/proc/{pid}/comm").strip()
    except OSError:
        return ""


def command(pid: int) -> str:
    """Its words, a blank between them; empty when it has gone."""
    try:
        return _text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
    except OSError:
        return ""


def parent(pid: int) -> int:
    """Whose child it is; 0 when it has gone."""
    return _of_stat(pid, _PARENT)


def started(pid: int) -> int:
    """When it was started, in clock ticks since boot; 0 when it has gone."""
    return _of_stat(pid, _START)


def _of_stat(pid: int, place: int) -> int:
    try:
        stat = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return 0
    return int(stat[place]) if len(stat) > place else 0


def children(pid: int) -> list[int]:
    """Its children, oldest first."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  cheaper
            found += _text(f"/proc/{pid}/task/{thread}/children").split()
    except OSError:
        return sorted(map(int, found))
    return sorted(map(int, found))


def _field(text: str, field: str) -> str:
    start = text.find(f"\n{field}:")
    return text[start + len(field) + 2 : text.find("\n", start + 1)].strip() if start >= 0 else ""


def _text(path: str) -> str:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(handle, _LONGEST).decode("utf-8", "replace")
    finally:
        os.close(handle)
