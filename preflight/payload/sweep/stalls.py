"""When a node stood still while a pair was measured: its measuring process, or all of it.

A process that is frozen in the middle of an all-reduce looks like a bad wire at both of its ends.
Its supervisor, another process, sees the difference. If the supervisor did not run itself, the
kernel knows whether it waited for a CPU (others had them all), or whether nothing ran.
"""

from __future__ import annotations

import os
import select
import time

from . import wall

_EVERY_S = 0.01
_HOLE_S = 0.025
"""Whoever sleeps for 10 ms and wakes after that much did not get to run meanwhile."""

_STARVED = 0.5
"""Share of the time overslept that it must have waited for a CPU to be merely starved."""

_KEPT = 200
_STAT_BYTES = 128  # pid, command and state stand first
_NOWHERE = -1  # as a descriptor


class Stalls:
    """Waits for the measuring process like select(2), and looks after it every 10 ms."""

    def __init__(self, pid: int) -> None:
        # one thread's stat is cheaper than that of all: a stop stops every thread
        self._stat = _opened(f"/proc/{pid}/task/{pid}/stat")
        self._schedstat = _opened("/proc/self/schedstat")
        self._stopped_from: float | None = None
        self._found: list[tuple[float, float, str]] = []

    def wait(self, descriptor: int, within_s: float) -> bool:
        """Whether it became readable in time."""
        ends = time.monotonic() + within_s
        waited_s = self._waited_s()
        while True:
            before = time.monotonic()
            slept_s = max(0.0, min(_EVERY_S, ends - before))
            readable = bool(select.select([descriptor], [], [], slept_s)[0])
            now = time.monotonic()
            was_s, waited_s = waited_s, self._waited_s()
            if now - before > _HOLE_S:
                starved = waited_s - was_s >= _STARVED * (now - before - slept_s)
                self._keep(before, now, "starved" if starved else "host")
            self._look(now)
            if readable or now >= ends:
                return readable

    def taken(self) -> list[tuple[float, float, str]]:
        """All since the last call, as (date, milliseconds, what); the longest ones if many."""
        if self._stopped_from is not None:
            self._keep(self._stopped_from, time.monotonic(), "stopped")
        longest = sorted(self._found, key=lambda one: -one[1])[:_KEPT]
        self._found, self._stopped_from = [], None
        return sorted(longest)

    def close(self) -> None:
        """Look no more."""
        for descriptor in (self._stat, self._schedstat):
            if descriptor != _NOWHERE:
                os.close(descriptor)
        self._stat = self._schedstat = _NOWHERE

    def _look(self, now: float) -> None:
        stopped = self._is_stopped()
        if stopped and self._stopped_from is None:
            self._stopped_from = now
        elif not stopped and self._stopped_from is not None:
            self._keep(self._stopped_from, now, "stopped")
            self._stopped_from = None

    def _is_stopped(self) -> bool:
        """By a signal, or held by a debugger."""
        return _text(self._stat).rpartition(b") ")[2][:1] in (b"T", b"t")

    def _waited_s(self) -> float:
        """For how long this process was ready to run and did not; without an answer, for ever.

        Source: Documentation/scheduler/sched-stats.rst, the second field (nanoseconds).
        """
        fields = _text(self._schedstat).split()
        return int(fields[1]) / 1e9 if len(fields) > 1 else time.monotonic()

    def _keep(self, began: float, ended: float, what: str) -> None:
        self._found.append((wall.date_s(began), round((ended - began) * 1000.0, 1), what))
        if len(self._found) > 2 * _KEPT:
            self._found = sorted(self._found, key=lambda one: -one[1])[:_KEPT]


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return _NOWHERE


def _text(descriptor: int) -> bytes:
    """What it shows now; nothing of a process that has ended."""
    try:
        return os.pread(descriptor, _STAT_BYTES, 0)
    except OSError:
        return b""
