"""A process that is late may hang, or merely wait for a CPU: the kernel knows which.

An overloaded node is a finding too, but another one than a dead link.
"""

from __future__ import annotations

import os

_EXPLAINS = 0.5
"""A thread that waited so much of the time for a CPU was starved."""


def waited_s(pid: int) -> dict[str, float]:
    """For how long each thread was ready to run and did not, since it began; seconds.

    Source: Documentation/scheduler/sched-stats.rst, the second field of schedstat (nanoseconds).
    """
    found: dict[str, float] = {}
    for thread in _names(f"/proc/{pid}/task"):
        fields = _text(f"/proc/{pid}/task/{thread}/schedstat").split()
        if len(fields) > 1:
            found[thread] = int(fields[1]) / 1e9
    return found


def stopped(pid: int) -> bool:
    """Whether somebody stopped it by a signal (or a debugger holds it)."""
    return _state(f"/proc/{pid}") in ("T", "t")


def in_d_state(pid: int) -> bool:
    """Whether one of its threads waits in the kernel, where no signal reaches it."""
    tasks = f"/proc/{pid}/task"
    return any(_state(f"{tasks}/{thread}") == "D" for thread in _names(tasks))


def excuse(before: dict[str, float], pid: int, within_s: float) -> str:
    """What explains the silence of the last `within_s`, as the end of a sentence, if anything."""
    if stopped(pid):
        return "; it was stopped by a signal"
    now = waited_s(pid)
    most = max((now[thread] - before.get(thread, 0.0) for thread in now), default=0.0)
    if most < _EXPLAINS * within_s:
        return ""
    return f"; it waited {most:.1f} s for a CPU: look at what else runs on this node"


def _state(folder: str) -> str:
    return _text(folder + "/stat").rpartition(") ")[2][:1]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
