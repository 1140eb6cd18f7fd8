"""How long one all-reduce took on this end, and how long this end dawdled before it."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BATCH_BYTES = 256 << 20
_BATCH = 64


class HostClock:
    """For gloo: the operation blocks, so the host's clock around it is the operation."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self.times_us: list[float] = []
        self.gaps_us: list[float] = []
        self._beat = beat
        self._ended = time.perf_counter_ns()

    def restart(self) -> None:
        """Do not count what passed since the last operation as this end's gap."""
        self._ended = time.perf_counter_ns()

    def run(self, operation: Callable[[], None], iterations: int) -> None:
        """Call `operation` (which starts and waits) that often, timing each call and each gap."""
        now = time.perf_counter_ns
        for _ in range(iterations):
            start = now()
            operation()
            end = now()
            self.times_us.append(round((end - start) / 1000.0, 1))
            self.gaps_us.append(round((start - self._ended) / 1000.0, 1))
            self._beat()
            self._ended = end


class CudaClock:
    """For NCCL: events on the stream, so that Python's own jitter stays out of the times.

    Operations are enqueued in batches that the host waits for: at most 64, or 256 MiB of data.
    """

    def __init__(self, torch: Any, size_bytes: int, beat: Callable[[], None]) -> None:
        self.times_us: list[float] = []
        self.gaps_us: list[float] = []
        self._cuda = torch.cuda
        self._beat = beat
        self._batch = max(1, min(_BATCH, _BATCH_BYTES // size_bytes))
        self._last: Any = None

    def restart(self) -> None:
        """Do not count what passed since the last operation as this end's gap."""
        self._last = None

    def run(self, operation: Callable[[], None], iterations: int) -> None:
        """Enqueue the operations in batches, each between two events of its own."""
        while iterations > 0:
            batch = min(iterations, self._batch)
            marks = [self._enqueue(operation) for _ in range(batch)]
            self._cuda.synchronize()
            for start, end in marks:
                gap_ms = 0.0 if self._last is None else self._last.elapsed_time(start)
                self.times_us.append(round(max(0.0, start.elapsed_time(end)) * 1000.0, 2))
                self.gaps_us.append(round(max(0.0, gap_ms) * 1000.0, 2))
                self._last = end
            self._beat()
            iterations -= batch

    def _enqueue(self, operation: Callable[[], None]) -> tuple[Any, Any]:
        start = self._cuda.Event(enable_timing=True)
        end = self._cuda.Event(enable_timing=True)
        start.record()
        operation()
        end.record()
        return start, end
