"""The host's simulated clock: what a GPU host would spend, not what two shared cores spend.

While a process works with its GPU, time passes only by what each call costs there (and by planted
stalls of the host). While it waits for others (a store, a pipe) real time passes. `time.monotonic`,
`time.perf_counter` and `time.time` of this process follow, so the code under test sees one clock.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

from . import machine

if TYPE_CHECKING:
    from collections.abc import Callable

_real_monotonic_ns = time.monotonic_ns
_real_time = time.time
real_sleep = time.sleep

_LONGEST_CATCH_UP_S = 5.0
_SLOW_S, _JUMP_US = 2.0, 0.6e6
"""A machine that simulates slowly passes so much time every so many real seconds: whoever watches
this process by real time is to see signs of life."""


def real_s() -> float:
    """Seconds of the machine's own steady clock."""
    return _real_monotonic_ns() / 1e9


class HostClock:
    """One per process that has initialised CUDA; `now_us` is microseconds, never going back."""

    def __init__(self) -> None:
        costs = machine.known()["host"]
        self._stalls_per_s = float(costs["stalls_per_s"])
        self._stall_us = float(costs["stall_ms"]) * 1000.0
        self._random = random.Random()  # noqa: S311  # a simulation
        self._simulated = False
        self._offset_us = 0.0
        self._now_us = _real_monotonic_ns() / 1000.0
        self._date_s = _real_time() - self._now_us / 1e6
        self._jumped_s = real_s()
        _patch(self)

    @property
    def now_us(self) -> float:
        """The host's time."""
        if self._simulated:
            return self._now_us
        return max(self._now_us, _real_monotonic_ns() / 1000.0 + self._offset_us)

    def enter(self) -> None:
        """From here on only calls of the GPU's library take time."""
        if not self._simulated:
            self._now_us = self.now_us
            self._simulated = True

    def leave(self) -> None:
        """From here on real time passes; first the real clock catches up."""
        if not self._simulated:
            return
        ahead_s = (self._now_us - self._offset_us) / 1e6 - real_s()
        if ahead_s > 0:
            real_sleep(min(ahead_s, _LONGEST_CATCH_UP_S))
        self._offset_us = max(self._offset_us, self._now_us - _real_monotonic_ns() / 1000.0)
        self._simulated = False

    def spend(self, us: float) -> None:
        """Pass time on the host; a stall may fall into it."""
        if not self._simulated:
            self.enter()
        self._now_us += us
        if self._stalls_per_s and self._random.random() < self._stalls_per_s * us / 1e6:
            self._now_us += self._stall_us

    def wait_until(self, us: float) -> None:
        """Wait for the device. No operation is timed by what the host does meanwhile."""
        self.enter()
        self._now_us = max(self._now_us, us)
        if real_s() - self._jumped_s > _SLOW_S:
            self._jumped_s = real_s()
            self._now_us += _JUMP_US

    def date_s(self) -> float:
        """Seconds since 1970 at `now_us`."""
        return self._date_s + self.now_us / 1e6


def _patch(clock: HostClock) -> None:
    def seconds() -> float:
        return clock.now_us / 1e6

    def nanoseconds() -> int:
        return int(clock.now_us * 1000.0)

    for name, function in {
        "monotonic": seconds,
        "perf_counter": seconds,
        "monotonic_ns": nanoseconds,
        "perf_counter_ns": nanoseconds,
        "time": clock.date_s,
    }.items():
        setattr(time, name, function)


def outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which waits for others: in it real time passes for the main thread."""

    def waiting(*args: Any, **kwargs: Any) -> Any:
        from . import cuda

        clock = cuda.clock_of_process()
        if clock is not None and threading.current_thread() is threading.main_thread():
            clock.leave()
        return function(*args, **kwargs)

    return waiting
