"""How long one all-reduce took on this end, and how long this end dawdled before it.

Between two operations the data of the first is checked and written anew. That is no dawdling, but a
host held up during a check is: so the usual time of a check is taken off each gap, no more.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from . import verify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BATCH, _CHECKED_BATCH = 64, 16
"""Operations of a batch; fewer with checks, of ten kernels each: a stream takes about 1,000 of
them, then it blocks the host (https://stackoverflow.com/questions/53970187)."""
_AHEAD, _AHEAD_US = 1.5, 1000.0
"""The stream is held up so many times as long as enqueueing takes, and by as much as a spike."""
_SLOWEST_MHZ = 100.0
"""Cycles of the slowest clock that a GPU counts by; what it really has is measured at once."""
_ENQUEUE_US = 50.0
_STRAYED_S = 0.001

SPIKE_MEDIANS = 20.0
"""An operation that took more than so many medians is a spike."""


class Clock(ABC):
    """What is common to both kinds: the lists, and what they come to."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self.times_us: list[float] = []
        self.checks_us: list[float] = []
        self._gaps_us: list[float] = []
        self._unchecked: set[int] = set()
        """Operations with no check before them."""
        self._beat = beat
        self._began = 0.0
        self._resumed: dict[int, float] = {}
        """When the gap before such an operation began, by the steady clock."""

    def restart(self) -> None:
        """Do not count what passed since the last operation as this end's gap."""
        now = time.monotonic()
        if not self.times_us:
            self._began = now
        self._resumed[len(self.times_us)] = now
        self._unchecked.add(len(self.times_us))

    def warm_up(self, operation: Callable[[], None], check: Callable[[], None], times: int) -> None:
        """Do it that often without counting it."""
        for _ in range(times):
            operation()
            check()
            self._beat()

    @abstractmethod
    def run(self, operation: Callable[[], None], check: Callable[[], None], times: int) -> None:
        """Do it that often, each timed by itself and followed by its check."""

    def one_s(self) -> float:
        """What one operation with its check usually takes, seconds."""
        return (_median(self.times_us) + _median(self.checks_us)) / 1e6

    def usual_s(self) -> float:
        """What one takes on average, spikes apart: they must not cost the pair its samples."""
        cut_us = SPIKE_MEDIANS * _median(self.times_us)
        usual = [time_us for time_us in self.times_us if time_us <= cut_us]
        return (sum(usual) / max(1, len(usual)) + _median(self.checks_us)) / 1e6

    def timing(self, base: float) -> dict[str, Any]:
        """Return every time and gap; `base`: what `began_s` counts from, by the steady clock."""
        check_us = round(_median(self.checks_us), 1)
        gaps_us = [
            round(gap if at in self._unchecked else max(0.0, gap - check_us), 2)
            for at, gap in enumerate(self._gaps_us)
        ]
        return {
            "times_us": self.times_us,
            "gaps_us": gaps_us,
            "check_us": check_us,
            "began_s": round(max(0.0, self._began - base), 6),
            "resumed": self._put_right(gaps_us, check_us, base),
        }

    def _put_right(
        self, gaps_us: list[float], check_us: float, base: float
    ) -> list[tuple[int, float]]:
        """Where the sum of what is told has strayed from the clock: what both ends agree by."""
        marks: list[tuple[int, float]] = []
        clock = self._began
        for at, gap_us in enumerate(gaps_us):
            shown = self._resumed.get(at, clock)
            if abs(shown - clock) > _STRAYED_S:
                marks.append((at, round(max(0.0, shown - base), 6)))
                clock = shown
            clock += (gap_us + self.times_us[at] + check_us) / 1e6
        return marks


class HostClock(Clock):
    """For gloo: the operation blocks, so the host's clock around it is the operation."""

    def __init__(self, beat: Callable[[], None]) -> None:
        super().__init__(beat)
        self._ended = time.perf_counter_ns()

    def restart(self) -> None:
        """Do not count what passed since the last operation as this end's gap."""
        super().restart()
        self._ended = time.perf_counter_ns()

    def run(self, operation: Callable[[], None], check: Callable[[], None], times: int) -> None:
        """Call `operation` (which starts and waits) that often."""
        now = time.perf_counter_ns
        for _ in range(times):
            start = now()
            operation()
            end = now()
            self.times_us.append(round((end - start) / 1000.0, 1))
            self._gaps_us.append((start - self._ended) / 1000.0)
            self._beat()
            check_from = now()
            check()
            self.checks_us.append((now() - check_from) / 1000.0)
            self._ended = end


class CudaClock(Clock):
    """For NCCL: events on a stream that is kept busy, so that a time is the device's own.

    A kernel that spins holds the stream up while the host enqueues a batch behind it: no operation
    waits for Python, and a host that stalls for less than is enqueued ahead delays nothing. The
    first operation of a batch waits for the partner's kernel to end, and is not counted.
    """

    def __init__(self, torch: Any, size_bytes: int, beat: Callable[[], None]) -> None:
        super().__init__(beat)
        self._cuda = torch.cuda
        self._batch = _BATCH if size_bytes < verify.EACH_FROM_BYTES else _CHECKED_BATCH
        self._events = [
            tuple(torch.cuda.Event(enable_timing=True) for _ in range(3))
            for _ in range(self._batch + 1)
        ]
        self._held = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._cycles_per_us = _SLOWEST_MHZ
        self._enqueue_us = _ENQUEUE_US
        self._prompt_us: list[float] = []
        """Times of operations that were enqueued before the stream came to them."""

    def restart(self) -> None:
        """Nothing is to be done: each batch begins anew."""

    def warm_up(self, operation: Callable[[], None], check: Callable[[], None], times: int) -> None:
        """Do it that often without counting it; learn how long the host takes to enqueue it."""
        while times > 0:
            batch = min(times, self._batch)
            self._enqueue(operation, check, batch)
            times -= batch

    def run(self, operation: Callable[[], None], check: Callable[[], None], times: int) -> None:
        """Enqueue the operations in batches, each between two events of its own."""
        while times > 0:
            batch = min(times, self._batch)
            self._count(self._enqueue(operation, check, batch + 1))
            times -= batch

    def _enqueue(
        self, operation: Callable[[], None], check: Callable[[], None], times: int
    ) -> list[float]:
        """Hold the stream up, enqueue so many behind that, and wait for all of them.

        Return for each how much of its time may be this host's, us: none, unless the stream passed
        its first event before all of it was there.
        """
        now = time.perf_counter_ns
        cycles = int((_AHEAD * times * self._enqueue_us + _AHEAD_US) * self._cycles_per_us)
        host_us: list[float] = []
        each_us: list[float] = []
        self._held[0].record()
        self._cuda._sleep(cycles)  # noqa: SLF001 - torch has no public kernel that spins
        self._held[1].record()
        for start, end, checked in self._events[:times]:
            begun = now()
            start.record()
            operation()
            end.record()
            enqueued_us = (now() - begun) / 1000.0
            host_us.append(enqueued_us if start.query() else 0.0)
            check()
            checked.record()
            each_us.append((now() - begun) / 1000.0)
        for _, _, checked in self._events[:times]:
            checked.synchronize()
            self._beat()
        held_us = self._held[0].elapsed_time(self._held[1]) * 1000.0
        self._cycles_per_us = max(self._cycles_per_us, cycles / max(held_us, 1.0))
        self._enqueue_us = _median(each_us)
        return host_us

    def _count(self, host_us: list[float]) -> None:
        """Read the events of a batch, but for those of its first operation.

        `host_us`: of each operation, how much of its time may be this host's; see `_enqueue`.
        """
        now, events = time.monotonic(), self._events[: len(host_us)]
        took_us = [start.elapsed_time(end) * 1000.0 for start, end, _ in events]
        counted = range(1, len(events))
        self._prompt_us += [took_us[at] for at in counted if not host_us[at]]
        usual_us = _median(self._prompt_us or took_us[1:])
        # What this host may have added is taken off, down to the usual time. It is a gap: the
        # partner waited in this operation or, if it was launched by then, in the next one.
        late_us = [max(0.0, min(host_us[at], took_us[at] - usual_us)) for at in counted]
        late_us = [0.0, *late_us]  # the first operation is not counted
        for at in counted:
            (_, former_end, _), (start, end, checked) = events[at - 1 : at + 1]
            if at == 1 or late_us[at - 1]:
                since_s = former_end.elapsed_time(events[-1][2]) / 1e3 + late_us[at - 1] / 1e6
                self._resumed[len(self.times_us)] = now - since_s
                self._began = self._began or now - since_s
            gap_us = former_end.elapsed_time(start) * 1000.0
            self.times_us.append(round(took_us[at] - late_us[at], 2))
            self._gaps_us.append(gap_us + late_us[at - 1] + late_us[at])
            self.checks_us.append(end.elapsed_time(checked) * 1000.0)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
