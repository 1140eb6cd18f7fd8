"""Nothing of ours stays behind on a node: every process below us is known and ended by its pid."""

from __future__ import annotations

import contextlib
import os
import signal


def end(pid: int) -> None:
    """Kill a process that we started and what it started; those already gone are fine."""
    if os.environ.get("PREFLIGHT_TEST_UNKILLABLE") == "1":
        return  # test seam: stands for a process in D state, which SIGKILL does not reach
    for each in (pid, *below(pid)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)


def end_all() -> None:
    """Kill every descendant of this process, without waiting for any of them."""
    for pid in of(os.getpid()):
        end(pid)


def below(pid: int) -> list[int]:
    """Return the pids of all descendants, parents before their children."""
    found: list[int] = []
    rising = [pid]
    while rising:
        rising = [child for parent in rising for child in of(parent)]
        found += rising
    return found


def of(pid: int) -> list[int]:
    """Return the pids of a process's children."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                children += map(int, file.read().split())
    return children
