"""Two GPUs, each with one CUDA stream and a host that fills it, in simulated time.

A stream does its work in the order in which the host enqueued it: an operation starts when the one
before it has ended and the host has enqueued it, and an event is stamped by the same rule (CUDA
programming guide, "Asynchronous Concurrent Execution"; cudaEventRecord, cudaEventQuery). An
all-reduce of NCCL starts at each end when its stream comes to it, and ends when the data of both
have passed: so the end that comes first waits in it (NCCL 2.27, src/device/prims_simple.h).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

EVENT_US, QUERY_US, WAKE_US = 1.5, 1.0, 10.0
"""What the host pays for recording an event, for querying one, and for waking up after a wait."""

_CYCLES_PER_US = 1980.0
"""Boost clock of an H100, MHz."""

_STUCK_S = 60.0


class Wire:
    """What joins the two ends: how long each all-reduce takes once both have come to it."""

    def __init__(self, took_us: Callable[[int], float]) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.took_us = took_us
        self.came_us: list[dict[int, float]] = []
        self.ends: list[End] = []

    def came(self, number: int, end: int, at_us: float) -> float | None:
        """That end's stream has come to an all-reduce; return when it ends, if that is known."""
        while len(self.came_us) <= number:
            self.came_us.append({})
        both = self.came_us[number]
        both[end] = at_us
        return max(both.values()) + self.took_us(number) if len(both) == len(self.ends) else None

    def resolve(self) -> None:
        """Follow both streams as far as what is enqueued tells."""
        while sum(end.follow() for end in self.ends):
            pass


class Mark:
    """As `torch.cuda.Event(enable_timing=True)`."""

    def __init__(self, end: End) -> None:
        self._end = end
        self.stamp_us: float | None = None

    def record(self) -> None:
        """Enqueue it."""
        self._end.spend(EVENT_US)
        self.stamp_us = None
        self._end.enqueue("event", self)

    def query(self) -> bool:
        """Whether the stream has passed it by now."""
        self._end.spend(QUERY_US)
        return self._end.has_passed(self)

    def synchronize(self) -> None:
        """Wait for it."""
        self._end.await_event(self)

    def elapsed_time(self, later: Mark) -> float:
        """Milliseconds between two that have passed."""
        assert self.stamp_us is not None
        assert later.stamp_us is not None
        return (later.stamp_us - self.stamp_us) / 1e3


class End:
    """One GPU and its host: stands for `torch`, for its `torch.cuda`, and for its `time`."""

    def __init__(self, wire: Wire, number: int, enqueue_us: float, device_us: float = 0.0) -> None:
        """`enqueue_us`: what an operation costs the host; `device_us`: what a check takes."""
        self.cuda = self
        self.now_us = 0.0
        self.worked_us = 0.0
        """Of that, what the host did not wait or stall."""
        self.stalls: list[tuple[float, float]] = []
        """(after how much work, how long) the host is to stall, us, in order."""
        self.over = False
        self._wire = wire
        self._number = number
        self._enqueue_us = enqueue_us
        self._device_us = device_us
        self._stream: list[tuple[str, Any, float]] = []
        self._done = 0
        self._free_us = 0.0
        self._collectives = 0
        wire.ends.append(self)

    def Event(self, *, enable_timing: bool) -> Mark:  # noqa: N802 - torch's name
        """Make an event."""
        assert enable_timing
        return Mark(self)

    def _sleep(self, cycles: int) -> None:
        """A kernel that spins (torch: aten/src/ATen/cuda/Sleep.cu)."""
        self.spend(self._enqueue_us)
        self.enqueue("kernel", cycles / _CYCLES_PER_US)

    def synchronize(self) -> None:
        """Wait for all that was enqueued."""
        last = Mark(self)
        last.record()
        last.synchronize()

    def perf_counter_ns(self) -> int:
        """The host's clock."""
        return int(self.now_us * 1e3)

    def monotonic(self) -> float:
        """The host's clock, seconds."""
        return self.now_us / 1e6

    def reduce(self) -> None:
        """All-reduce with the other end."""
        self.spend(self._enqueue_us)
        self.enqueue("collective", self._collectives)
        self._collectives += 1

    def check(self) -> None:
        """Compare a result: some kernels, each of which the host must enqueue."""
        if self._device_us:
            self.spend(10 * self._enqueue_us)
            self.enqueue("kernel", self._device_us)

    def agree(self) -> None:
        """All-reduce and wait for what came out."""
        self.reduce()
        self.synchronize()

    def spend(self, us: float) -> None:
        """The host works so long, and stalls where it is to stall."""
        with self._wire.changed:
            self.now_us += us
            self.worked_us += us
            while self.stalls and self.stalls[0][0] <= self.worked_us:
                self.now_us += self.stalls.pop(0)[1]
            self._wire.changed.notify_all()

    def enqueue(self, kind: str, what: Any) -> None:
        """Hand it to the stream now."""
        with self._wire.changed:
            self._stream.append((kind, what, self.now_us))
            self._wire.resolve()
            self._wire.changed.notify_all()

    def follow(self) -> bool:
        """Do what can be done of the stream; return whether that was anything."""
        before = self._done
        while self._done < len(self._stream):
            kind, what, enqueued_us = self._stream[self._done]
            start_us = max(self._free_us, enqueued_us)
            if kind == "kernel":
                self._free_us = start_us + what
            elif kind == "event":
                what.stamp_us = self._free_us = start_us
            else:
                ended_us = self._wire.came(what, self._number, start_us)
                if ended_us is None:
                    break
                self._free_us = ended_us
            self._done += 1
        return self._done > before

    def has_passed(self, event: Mark) -> bool:
        """What a query now must say: known once the other host has come as far as this one."""

        def known() -> bool:
            return event.stamp_us is not None or all(
                end.over or end.now_us >= self.now_us for end in self._wire.ends
            )

        with self._wire.changed:
            assert self._wire.changed.wait_for(known, _STUCK_S)
            return event.stamp_us is not None and event.stamp_us <= self.now_us

    def await_event(self, event: Mark) -> None:
        """The host sleeps until the event has passed."""
        with self._wire.changed:
            assert self._wire.changed.wait_for(lambda: event.stamp_us is not None, _STUCK_S)
            assert event.stamp_us is not None
            if event.stamp_us > self.now_us:
                self.now_us = event.stamp_us + WAKE_US
            self._wire.changed.notify_all()

    def leave(self) -> None:
        """The host has nothing more to do."""
        with self._wire.changed:
            self.over = True
            self._wire.changed.notify_all()


class Time(threading.local):
    """Stands for the module `time`: each thread has the clock of its own end."""

    end: End

    def perf_counter_ns(self) -> int:
        """The host's clock."""
        return self.end.perf_counter_ns()

    def monotonic(self) -> float:
        """The host's clock, seconds."""
        return self.end.monotonic()
