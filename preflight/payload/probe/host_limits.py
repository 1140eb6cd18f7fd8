"""RDMA locks memory and collectives open many files: what our login may, and what jobs inherit."""

from __future__ import annotations

import os
import resource

from . import procfs
from .host_files import attempt_lines, keyed, lines
from .text import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

UNLIMITED = -1

_LAUNCHERS = ("slurmd", "pbs_mom")
"""Jobs are started below these; sshd is not among them."""

_MOST = 1 << 62
"""What the document can hold, and nobody has."""

_IPC_LOCK = 14
"""CAP_IPC_LOCK of capabilities(7): no limit on locked memory."""

_ALL_IDS = ["0", "0", "4294967295"]
"""The uid_map of the machine's own user namespace; in another, capabilities lock nothing."""


def own() -> dict[str, int]:
    """Return `Limits` of this process."""
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    nofile = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _limits(*memlock, *nofile)


def locks_any() -> bool:
    """Whether this process may lock memory beyond its limit."""
    effective = int(keyed(lines("/proc/self/status"))["CapEff"], 16)
    return bool(effective >> _IPC_LOCK & 1) and lines("/proc/self/uid_map")[0].split() == _ALL_IDS


def launchers() -> list[dict[str, Any]]:
    """Return every scheduler's daemon of this node with its limits."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        name = "".join(attempt_lines(f"/proc/{pid}/comm"))
        if name in _LAUNCHERS and procfs.is_daemon(int(pid), name):
            limits = parse(attempt_lines(f"/proc/{pid}/limits"))
            if limits is not None:
                found.append({"name": clean(name), "pid": int(pid), "limits": limits})
    return found[:8]


def parse(found: list[str]) -> dict[str, int] | None:
    """Read /proc/PID/limits; None where a limit that we need is not there."""
    words = {
        name: line[len(name) :].split()[:2]
        for line in found
        for name in ("Max locked memory", "Max open files")
        if line.startswith(name)
    }
    try:
        memlock, nofile = _pair(words["Max locked memory"]), _pair(words["Max open files"])
    except (LookupError, ValueError):
        return None
    return _limits(*memlock, *nofile)


def _pair(words: list[str]) -> tuple[int, int]:
    soft, hard = (UNLIMITED if word == "unlimited" else int(word) for word in words)
    return soft, hard


def _limits(memlock: int, memlock_hard: int, nofile: int, nofile_hard: int) -> dict[str, int]:
    limits = {
        "memlock": memlock,
        "memlock_hard": memlock_hard,
        "nofile": nofile,
        "nofile_hard": nofile_hard,
    }
    return {name: min(limit, _MOST) for name, limit in limits.items()}
