"""What /proc tells of one process beyond its stat line; None where this login may not look."""

from __future__ import annotations

import contextlib
import os
import re

from .text import attempt

_JOB = re.compile(rb"(?:^|/)job_(\d+)(?:/|$)", re.MULTILINE)
_GPU = re.compile(r"/dev/nvidia\d")
_SOCKET = re.compile(r"socket:\[(\d+)\]")
ENVIRON_LIMIT = 1 << 20


def _raw(path: str, limit: int = 65536) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(limit)
    except OSError:
        return None


def argv(pid: int) -> list[bytes]:
    """Return its command line; [] for a zombie, a kernel thread, or what is hidden."""
    line = (_raw(f"/proc/{pid}/cmdline") or b"").rstrip(b"\0 ")
    return line.split(b"\0") if line else []


def environ(pid: int) -> bytes | None:
    """Return its environment as it was started, raw; None where this login may not read it."""
    return _raw(f"/proc/{pid}/environ", ENVIRON_LIMIT)


def variables(block: bytes | None) -> dict[bytes, bytes]:
    """Split a raw environment into names and values."""
    entries = (entry.partition(b"=") for entry in (block or b"").split(b"\0"))
    return {name: value for name, equals, value in entries if equals}


def uid(pid: int) -> int | None:
    """Return its effective user id, from `status`: the folder's owner may say root instead."""
    block = _raw(f"/proc/{pid}/status")
    for line in (block or b"").splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[2])
    return None


def is_daemon(pid: int, name: str) -> bool:
    """Whether root started it from a program of that name: anybody may call a process so.

    By the real user, as the effective one is root's in a setuid program that a user started by
    another name; by the program too where this login may see it.
    """
    words = [line.split() for line in (_raw(f"/proc/{pid}/status") or b"").splitlines()]
    try:
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        program = name
    roots = any(word[:2] == [b"Uid:", b"0"] for word in words)
    return roots and program.startswith(name)


def wchan(pid: int) -> str:
    """Return the kernel function it sleeps in; "" where the kernel does not tell."""
    name = attempt(f"/proc/{pid}/wchan")
    return "" if name == "0" else name


def job(pid: int) -> str:
    """Return the Slurm job whose cgroup holds it; "" if none does."""
    found = _JOB.search(_raw(f"/proc/{pid}/cgroup") or b"")
    return found.group(1).decode("ascii") if found else ""


class Open:
    """What a process has open, as far as this question goes: GPUs and sockets."""

    def __init__(self, targets: list[str]) -> None:
        self.gpu = any(map(_GPU.match, targets))
        self.sockets = {found.group(1) for found in map(_SOCKET.match, targets) if found}


def opened(pid: int) -> Open | None:
    """Return what it has open; None where this login may not look."""
    folder = f"/proc/{pid}/fd"
    targets = []
    try:
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                targets.append(os.readlink(f"{folder}/{name}"))
    except OSError:
        return None
    return Open(targets)
