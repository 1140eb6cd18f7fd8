"""How long one all-reduce took on this end, and how long this end dawdled before it.

Between two operations the data of the first is checked and written anew. That is no dawdling, but a
host held up during a check is: so the usual time of a check is taken off each gap, no more.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BATCH_BYTES = 256 << 20
_BATCH = 64
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
    """For NCCL: events on the stream, so that Python's own jitter stays out of the times.

    Operations are enqueued in batches that the host waits for: at most 64, or 256 MiB of data.
    """

    def __init__(self, torch: Any, size_bytes: int, beat: Callable[[], None]) -> None:
        super().__init__(beat)
        self._cuda = torch.cuda
        self._batch = max(1, min(_BATCH, _BATCH_BYTES // size_bytes))
        self._last: Any = None

    def restart(self) -> None:
        """Do not count what passed since the last operation as this end's gap."""
        super().restart()
        self._last = None

    def run(self, operation: Callable[[], None], check: Callable[[], None], times: int) -> None:
        """Enqueue the operations in batches, each between two events of its own."""
        while times > 0:
            batch = min(times, self._batch)
            marks = [self._enqueue(operation, check) for _ in range(batch)]
            self._cuda.synchronize()
            for start, end, checked in marks:
                gap_ms = 0.0 if self._last is None else self._last.elapsed_time(start)
                self.times_us.append(round(max(0.0, start.elapsed_time(end)) * 1000.0, 2))
                self._gaps_us.append(max(0.0, gap_ms) * 1000.0)
                self.checks_us.append(max(0.0, end.elapsed_time(checked)) * 1000.0)
                self._last = end
            self._beat()
            times -= batch

    def _enqueue(self, operation: Callable[[], None], check: Callable[[], None]) -> Any:
        start, end, checked = (self._cuda.Event(enable_timing=True) for _ in range(3))
        start.record()
        operation()
        end.record()
        check()
        checked.record()
        return start, end, checked


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
