"""Times each all-reduce on this end, and the gap before it.

Between two operations the data of the first are checked and rewritten. The usual time of a check is
subtracted from each gap, but a delay of the host during a check still counts.

All durations are by the steady clock, since the system clock may be set meanwhile (by NTP or a
person); the system clock only gives dates.

A process that is frozen during an all-reduce looks like a bad link at both ends. Its supervisor,
another process, sees the difference. If the supervisor itself did not run, the kernel knows whether
it waited for a CPU or the whole machine stood still.

An overloaded node is a finding, too, but not a dead link.
"""

from __future__ import annotations

import select
import time
from abc import ABC, abstractmethod
from typing import Any, Callable

from probe import procfs
from probe.node_files import names

from . import verify

_BATCH, _CHECKED_BATCH = 64, 16
"""Operations of a batch; fewer with checks of ten kernels each: a stream takes about 1,000 kernels,
then it blocks the host (https://stackoverflow.com/questions/53970187)."""
_AHEAD, _AHEAD_US = 1.5, 1000.0
"""The stream is delayed by this multiple of the time to enqueue, plus this time for a spike."""
_SLOWEST_MHZ = 100.0
"""A lower bound of a GPU's clock; the real value is measured with the first batch."""
_ENQUEUE_US = 50.0
_DRIFT_S = 0.001

SPIKE_MEDIANS = 20.0
"""An operation that takes more than this many medians is a spike."""

Work = Callable[[], None]


class Clock(ABC):
    """The common part of both clocks: the lists of times, and their evaluation.

    `operation` starts one all-reduce, `check` follows each, `beat` is called between two of them.
    """

    def __init__(self, operation: Work, check: Work, beat: Work) -> None:
        self.times_us: list[float] = []
        self.checks_us: list[float] = []
        self._gaps_us: list[float] = []
        self._unchecked: set[int] = set()
        """Operations with no check before them."""
        self._operation, self._check, self._beat = operation, check, beat
        self._began = 0.0
        self._resumed: dict[int, float] = {}
        """The start of the gap before such an operation, by the steady clock."""

    def restart(self) -> None:
        """Exclude the time since the last operation from the gap."""
        now = time.monotonic()
        if not self.times_us:
            self._began = now
        self._resumed[len(self.times_us)] = now
        self._unchecked.add(len(self.times_us))

    def warm_up(self, times: int) -> None:
        """Run the operation `times` times without recording it."""
        for _ in range(times):
            self._operation()
            self._check()
            self._beat()

    @abstractmethod
    def run(self, times: int) -> None:
        """Run the operation `times` times, each timed and followed by its check."""

    def one_s(self) -> float:
        """Median seconds of one operation with its check."""
        return (_median(self.times_us) + _median(self.checks_us)) / 1e6

    def usual_s(self) -> float:
        """Mean seconds of one operation, without spikes, which must not reduce the samples."""
        cut_us = SPIKE_MEDIANS * _median(self.times_us)
        usual = [time_us for time_us in self.times_us if time_us <= cut_us]
        return (sum(usual) / max(1, len(usual)) + _median(self.checks_us)) / 1e6

    def timing(self, base: float) -> dict[str, Any]:
        """Return every time and gap; `base`: the zero of `began_s`, by the steady clock."""
        check_us = round(_median(self.checks_us), 1)
        gaps_us = [
            round(gap if index in self._unchecked else max(0.0, gap - check_us), 2)
            for index, gap in enumerate(self._gaps_us)
        ]
        return {
            "times_us": self.times_us,
            "gaps_us": gaps_us,
            "check_us": check_us,
            "began_s": round(max(0.0, self._began - base), 6),
            "resumed": self._clock_marks(gaps_us, check_us, base),
        }

    def _clock_marks(
        self, gaps_us: list[float], check_us: float, base: float
    ) -> list[tuple[int, float]]:
        """Return the operations at which the sum of times and gaps deviates from the clock.

        With these marks both ends can be placed on one time axis.
        """
        marks: list[tuple[int, float]] = []
        clock = self._began
        for index, gap_us in enumerate(gaps_us):
            resumed_s = self._resumed.get(index, clock)
            if abs(resumed_s - clock) > _DRIFT_S:
                marks.append((index, round(max(0.0, resumed_s - base), 6)))
                clock = resumed_s
            clock += (gap_us + self.times_us[index] + check_us) / 1e6
        return marks


class HostClock(Clock):
    """For gloo: the operation blocks, so the host's clock times it."""

    def __init__(self, operation: Work, check: Work, beat: Work) -> None:
        super().__init__(operation, check, beat)
        self._ended = time.perf_counter_ns()

    def restart(self) -> None:
        """Exclude the time since the last operation from the gap."""
        super().restart()
        self._ended = time.perf_counter_ns()

    def run(self, times: int) -> None:
        """Call the operation, which starts and waits, `times` times."""
        now = time.perf_counter_ns
        for _ in range(times):
            start = now()
            self._operation()
            end = now()
            self.times_us.append(round((end - start) / 1000.0, 1))
            self._gaps_us.append((start - self._ended) / 1000.0)
            self._beat()
            check_from = now()
            self._check()
            self.checks_us.append((now() - check_from) / 1000.0)
            self._ended = end


class CudaClock(Clock):
    """For NCCL: CUDA events on a busy stream, so that a time is the device's own.

    A spinning kernel delays the stream while the host enqueues a batch behind it: so no operation
    waits for Python, and short stalls of the host delay nothing. The first operation of a batch
    waits for the partner's kernel, and does not count.
    """

    def __init__(
        self, torch: Any, size_bytes: int, operation: Work, check: Work, beat: Work
    ) -> None:
        super().__init__(operation, check, beat)
        self._cuda = torch.cuda
        self._batch = _BATCH if size_bytes < verify.EACH_FROM_BYTES else _CHECKED_BATCH
        self._events = [
            tuple(torch.cuda.Event(enable_timing=True) for _ in range(3))
            for _ in range(self._batch + 1)
        ]
        self._delay = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._cycles_per_us = _SLOWEST_MHZ
        self._enqueue_us = _ENQUEUE_US
        self._prompt_us: list[float] = []
        """Times of operations that were enqueued before the stream reached them."""

    def restart(self) -> None:
        """Do nothing: each batch restarts the clock."""

    def warm_up(self, times: int) -> None:
        """Run the operation without recording it; measure how long the host takes to enqueue it."""
        for done in range(0, times, self._batch):
            self._enqueue(min(times - done, self._batch))

    def run(self, times: int) -> None:
        """Enqueue the operations in batches, each operation between two events."""
        for done in range(0, times, self._batch):
            self._count(self._enqueue(min(times - done, self._batch) + 1))

    def _enqueue(self, times: int) -> list[float]:
        """Delay the stream, enqueue `times` operations, and wait for all of them.

        Return for each how much of its time (us) the host may have caused: 0, unless the stream
        passed its first event before the operation was enqueued.
        """
        now = time.perf_counter_ns
        cycles = int((_AHEAD * times * self._enqueue_us + _AHEAD_US) * self._cycles_per_us)
        host_us: list[float] = []
        each_us: list[float] = []
        self._delay[0].record()
        self._cuda._sleep(cycles)  # noqa: SLF001 - torch has no public kernel that spins
        self._delay[1].record()
        for start, end, checked in self._events[:times]:
            begun = now()
            start.record()
            self._operation()
            end.record()
            enqueued_us = (now() - begun) / 1000.0
            host_us.append(enqueued_us if start.query() else 0.0)
            self._check()
            checked.record()
            each_us.append((now() - begun) / 1000.0)
        for _, _, checked in self._events[:times]:
            checked.synchronize()
            self._beat()
        delay_us = self._delay[0].elapsed_time(self._delay[1]) * 1000.0
        self._cycles_per_us = max(self._cycles_per_us, cycles / max(delay_us, 1.0))
        self._enqueue_us = _median(each_us)
        return host_us

    def _count(self, host_us: list[float]) -> None:
        """Read the events of a batch, except those of its first operation.

        `host_us`: how much of each operation's time the host may have caused; see `_enqueue`.
        """
        now, events = time.monotonic(), self._events[: len(host_us)]
        took_us = [start.elapsed_time(end) * 1000.0 for start, end, _ in events]
        indices = range(1, len(events))
        self._prompt_us += [took_us[index] for index in indices if not host_us[index]]
        usual_us = _median(self._prompt_us or took_us[1:])
        # The host's delay is subtracted, down to the usual time, and counts as a gap: the partner
        # waited in this operation or, if that was launched by then, in the next one.
        late_us = [max(0.0, min(host_us[index], took_us[index] - usual_us)) for index in indices]
        late_us = [0.0, *late_us]  # the first operation is not counted
        for index in indices:
            (_, former_end, _), (start, end, checked) = events[index - 1 : index + 1]
            if index == 1 or late_us[index - 1]:
                since_s = former_end.elapsed_time(events[-1][2]) / 1e3 + late_us[index - 1] / 1e6
                self._resumed[len(self.times_us)] = now - since_s
                self._began = self._began or now - since_s
            gap_us = former_end.elapsed_time(start) * 1000.0
            self.times_us.append(round(took_us[index] - late_us[index], 2))
            self._gaps_us.append(gap_us + late_us[index - 1] + late_us[index])
            self.checks_us.append(end.elapsed_time(checked) * 1000.0)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


_WALL, _STEADY = time.time(), time.monotonic()  # the agent's, which its ranks inherit by fork

_LEAST_S = 1.0
_SLEWED = 0.001
"""NTP may slew a clock by half of that without setting it."""


def now_s() -> float:
    """Seconds since 1970, unaffected by setting the clock."""
    return date_s(time.monotonic())


def date_s(steady: float) -> float:
    """Convert a time of the steady clock to seconds since 1970, unaffected by setting the clock."""
    return round(_WALL + steady - _STEADY, 3)


class Steps:
    """Measures by how much the system clock was set."""

    def __init__(self) -> None:
        self._offset_s = time.time() - now_s()
        self._looked = time.monotonic()

    def step_s(self) -> float:
        """Seconds by which it was set since the last call; 0.0 if it was not."""
        now, off_s = time.monotonic(), time.time() - now_s()
        passed_s, self._looked = now - self._looked, now
        step_s, self._offset_s = off_s - self._offset_s, off_s
        return round(step_s, 1) if abs(step_s) > _LEAST_S + _SLEWED * passed_s else 0.0


_EVERY_S = 0.01
_HOLE_S = 0.025
"""A process that sleeps for 10 ms and wakes after this long did not run meanwhile."""

_STARVED = 0.5
"""Share of the lost time in which a starved process waited for a CPU."""

_MOST_STALLS = 200


class Stalls:
    """Waits for the measuring process like select(2), and checks every 10 ms whether it runs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stopped_from: float | None = None
        self._stalls: list[tuple[float, float, str]] = []

    def wait(self, descriptor: int, within_s: float) -> bool:
        """Whether it became readable in time."""
        deadline = time.monotonic() + within_s
        waited_s = self._waited_s()
        while True:
            slept_from = time.monotonic()
            slept_s = max(0.0, min(_EVERY_S, deadline - slept_from))
            readable = bool(select.select([descriptor], [], [], slept_s)[0])
            now = time.monotonic()
            earlier_s, waited_s = waited_s, self._waited_s()
            if now - slept_from > _HOLE_S:
                starved = waited_s - earlier_s >= _STARVED * (now - slept_from - slept_s)
                self._record(slept_from, now, "starved" if starved else "host")
            self._look(now)
            if readable or now >= deadline:
                return readable

    def take(self) -> list[tuple[float, float, str]]:
        """Stalls since the last call, as (date, milliseconds, kind); only the longest if many."""
        if self._stopped_from is not None:
            self._record(self._stopped_from, time.monotonic(), "stopped")
        longest = sorted(self._stalls, key=lambda stall: -stall[1])[:_MOST_STALLS]
        self._stalls, self._stopped_from = [], None
        return sorted(longest)

    def _look(self, now: float) -> None:
        stopped = is_stopped(self._pid)
        if stopped and self._stopped_from is None:
            self._stopped_from = now
        elif not stopped and self._stopped_from is not None:
            self._record(self._stopped_from, now, "stopped")
            self._stopped_from = None

    @staticmethod
    def _waited_s() -> float:
        """How long this process was ready to run but did not; without schedstats, the time now."""
        times = procfs.scheduled("self")
        return times[1] if times else time.monotonic()

    def _record(self, began: float, ended: float, kind: str) -> None:
        self._stalls.append((date_s(began), round((ended - began) * 1000.0, 1), kind))
        if len(self._stalls) > 2 * _MOST_STALLS:
            self._stalls = sorted(self._stalls, key=lambda stall: -stall[1])[:_MOST_STALLS]


_EXPLAINS = 0.5
"""Share of the time that a starved thread waits for a CPU."""


def waited_s(pid: int) -> dict[str, float]:
    """Seconds that each thread was ready to run but did not, since its start."""
    threads = names(f"/proc/{pid}/task")
    times = {thread: procfs.scheduled(f"{pid}/task/{thread}") for thread in threads}
    return {thread: row[1] for thread, row in times.items() if row}


def longest_wait_s(before: dict[str, float], pid: int) -> float:
    """Seconds that the thread that waited most has waited since `before`."""
    now = waited_s(pid)
    return max((now[thread] - before.get(thread, 0.0) for thread in now), default=0.0)


def is_stopped(pid: int) -> bool:
    """Whether it is stopped by a signal or a debugger."""
    stat = procfs.look(pid, pid)  # a stop stops every thread; one thread's stat is cheaper
    return stat is not None and stat.state in ("T", "t")


def in_d_state(pid: int) -> bool:
    """Whether one of its threads is in D state, where no signal reaches it."""
    threads = (procfs.look(pid, int(thread)) for thread in names(f"/proc/{pid}/task"))
    return any(stat is not None and stat.state == "D" for stat in threads)


def excuse(before: dict[str, float], pid: int, within_s: float) -> str:
    """Explain the silence of the last `within_s`, as the end of a sentence; "" if not known."""
    if is_stopped(pid):
        return "; it was stopped by a signal"
    most = longest_wait_s(before, pid)
    if most < _EXPLAINS * within_s:
        return ""
    return f"; it waited {most:.1f} s for a CPU: look at what else runs on this node"
