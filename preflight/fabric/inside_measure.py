"""What one node's all-reduce among its own rails comes to: speed, latency, and who kept it waiting.

The time of an operation is the shortest of all rails': that of the last one to begin it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fabric.limits import limit
from preflight.fabric.measure import WORST_FIRST, busbw_gbs
from preflight.fabric.samples import PairState
from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.samples import End, InsideSamples, Timing

SPIKE_MEDIANS = 20.0
"""What is no longer than so many medians of its size is no event."""

CPU_WAIT = "cpu wait_s"
"""What a rail calls it, among its counters."""

_EXPLAINS = 0.5
"""A rail is late if its own gap is at least that part of what the others waited for it."""


class Size(Struct, frozen=True):
    """One size on all rails."""

    size_bytes: int
    busbw_gbs: float
    """Of the median operation."""
    best_gbs: float
    p50_us: float


class Events(Struct, frozen=True):
    """Operations that took far longer than usual."""

    count: int = 0
    operations: int = 0
    worst_us: float = 0.0
    lost_us: float = 0.0
    """How much longer than usual all of them took together."""
    late: dict[int, int] = {}
    """Rail → for how many of them it kept the others waiting, by its own clock."""

    @property
    def rail(self) -> int | None:
        """The one rail that explains most of them, if there is one."""
        most = max(self.late, key=self.late.__getitem__, default=None)
        return most if most is not None and self.late[most] * 4 >= self.count * 3 else None


class Measured(Struct, frozen=True, kw_only=True):
    """One node."""

    name: str
    backend: str
    rails: int
    state: PairState
    sizes: tuple[Size, ...] = ()
    events: Events = Events()
    net: str = ""
    cpu_wait_us: float = 0.0
    """For how long its processes were ready and did not run, all together."""


def measure_inside(samples: InsideSamples) -> Measured:
    """Join the accounts of all rails."""
    ends = samples.rails
    states: list[PairState] = ["absent" if end is None else end.state for end in ends]
    state: PairState = min(states, key=WORST_FIRST.index, default="absent")
    whole = [end for end in ends if end is not None]
    columns = _columns(whole) if state == "measured" else {}
    if state == "measured" and not columns:
        state = "error"
    return Measured(
        name=samples.node,
        backend=samples.backend,
        rails=len(ends),
        state=state,
        sizes=tuple(_size(at, rows, len(ends)) for at, rows in columns.items()),
        events=_events(samples.backend, columns, tuple(samples.numbered)),
        net=" / ".join(dict.fromkeys(end.net for end in whole if end.net)),
        cpu_wait_us=sum(m.by * 1e6 for end in whole for m in end.moved if m.name == CPU_WAIT),
    )


def _columns(ends: Sequence[End]) -> dict[int, list[Timing]]:
    """By size in ascending order: each rail's timing, of sizes that all rails measured."""
    by_size: dict[int, list[Timing]] = {}
    for end in ends:
        for timing in end.timings:
            by_size.setdefault(timing.size_bytes, []).append(timing)
    return {at: by_size[at] for at in sorted(by_size) if len(by_size[at]) == len(ends)}


def _size(size_bytes: int, rails: Sequence[Timing], count: int) -> Size:
    times = _shortest(rails)
    typical_us = median(times)
    return Size(
        size_bytes,
        round(busbw_gbs(size_bytes, typical_us / 1e6, count), 6),
        round(busbw_gbs(size_bytes, min(times) / 1e6, count), 6),
        typical_us,
    )


def _shortest(rails: Sequence[Timing]) -> list[float]:
    return [min(times) for times in zip(*(rail.times_us for rail in rails), strict=False)]


def _events(backend: str, columns: dict[int, list[Timing]], numbers: Sequence[int]) -> Events:
    count, operations, worst_us, lost_us = 0, 0, 0.0, 0.0
    late: dict[int, int] = {}
    for rails in columns.values():
        usual_us = median(_shortest(rails))
        cut_us = max(limit(backend, "spike_us") or 0.0, SPIKE_MEDIANS * usual_us)
        gaps = list(zip(*(rail.gaps_us for rail in rails), strict=False))
        operations += len(gaps)
        for at, times in enumerate(zip(*(rail.times_us for rail in rails), strict=False)):
            if max(times) <= cut_us:
                continue
            count += 1
            worst_us = max(worst_us, *times)
            lost_us += max(times) - usual_us
            last = times.index(min(times))
            if gaps[at][last] >= _EXPLAINS * (max(times) - usual_us):
                late[numbers[last]] = late.get(numbers[last], 0) + 1
    return Events(count, operations, worst_us, lost_us, late)
