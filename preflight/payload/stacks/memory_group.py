"""Whether the kernel killed something for want of memory in a process's own control group."""

from __future__ import annotations

import re

from probe.text import attempt

_ROOTS = {2: ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), 1: ("/sys/fs/cgroup/memory",)}
_FILES = {2: "memory.events", 1: "memory.oom_control"}
_KILLS = re.compile(r"\boom_kill (\d{1,15})\b")
_JOB = re.compile(r"/job_\d+(?=/|$)")
"""Slurm limits the memory of a job as a whole: its ranks are groups below."""


def oom_kills(pid: int) -> int:
    """Return how many processes of its group, or of the job's, were killed; 0 where untold."""
    most = 0
    for version, path in groups(_cgroup(pid)):
        job = _JOB.search(path)
        for each in {path, path[: job.end()] if job else path}:
            for root in _ROOTS[version]:
                told = _KILLS.search(attempt(f"{root}{each}/{_FILES[version]}"))
                most = max(most, int(told.group(1)) if told else 0)
    return most


def groups(text: str) -> list[tuple[int, str]]:
    """Read /proc/PID/cgroup: (version, path) of those that account memory; not the root itself."""
    found = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon or not path.startswith("/") or path == "/" or ".." in path:
            continue
        if number == "0" and not controllers:
            found.append((2, path))
        elif "memory" in controllers.split(","):
            found.append((1, path))
    return found


def _cgroup(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as file:
            return file.read(65536).decode("utf-8", "replace")
    except OSError:
        return ""
