"""What a process had used at one moment; two of these say what it did in between."""

from __future__ import annotations

import os

from probe.stat import TICKS
from probe.text import attempt

from . import memory_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Moment = dict[str, Any]

_STATES = {"R": "running", "S": "sleeping", "D": "disk", "T": "stopped", "t": "traced",
           "Z": "zombie", "X": "gone", "x": "gone"}  # fmt: skip
_LEAST = 20
"""Fields of a stat line after the name, up to the start time."""

_PAGE = os.sysconf("SC_PAGE_SIZE")


def read(pids: dict[str, int]) -> dict[str, Moment]:
    """Return one `Moment` for each process, by its pid as text; `pids` gives each one's start.

    One that has ended, or whose pid another has by now, is in the state "gone". In a child only:
    it is the kernel's own account, but of processes that may be stuck.
    """
    return {pid: moment(int(pid), start) for pid, start in pids.items()}


def moment(pid: int, start: int) -> Moment:
    """Return what the kernel accounts to one process now."""
    fields = _fields(f"/proc/{pid}/stat")
    if fields is None or int(fields[19]) != start:
        return {"state": "gone"}
    status = _status(pid)
    io = _keyed(f"/proc/{pid}/io")
    main = _fields(f"/proc/{pid}/task/{pid}/stat")
    return {
        "state": _STATES.get(fields[0].decode("ascii"), "sleeping"),
        "wait_channel": _wait_channel(pid),
        "cpu_s": _cpu_s(fields),
        "main_cpu_s": _cpu_s(main or fields),
        "switches": status.get("voluntary_ctxt_switches", 0),
        "read_bytes": io.get("rchar"),
        "written_bytes": io.get("wchar"),
        "memory_mib": max(0, int(fields[21])) * _PAGE >> 20,
        "oom_kills": memory_group.oom_kills(pid),
        **_children(pid),
    }


def _fields(path: str) -> list[bytes] | None:
    """Return the fields of a stat line after the name; None where the process is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            fields = file.read(4096).rpartition(b") ")[2].split()
    except OSError:
        return None
    return fields if len(fields) > _LEAST + 1 else None


def _cpu_s(fields: list[bytes]) -> float:
    return (int(fields[11]) + int(fields[12])) / TICKS


def _status(pid: int) -> dict[str, int]:
    return _keyed(f"/proc/{pid}/status")


def _keyed(path: str) -> dict[str, int]:
    """Return the whole numbers of a file of "Name: number" lines; {} where it may not be read."""
    try:
        with open(path, "rb") as file:
            lines = file.read(65536).decode("ascii", "replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: int(value) for name, _, value in pairs if value.strip().isdigit()}


def _wait_channel(pid: int) -> str:
    name = attempt(f"/proc/{pid}/wchan")
    return "" if name == "0" else name


def _children(pid: int) -> dict[str, int]:
    """Count the children of all its threads, and those that have ended and are not waited for."""
    alive = dead = 0
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        tasks = []
    for task in tasks:
        for child in attempt(f"/proc/{pid}/task/{task}/children").split():
            fields = _fields(f"/proc/{child}/stat")
            dead += fields is not None and fields[0] == b"Z"
            alive += 1
    return {"children": alive, "dead_children": dead}
