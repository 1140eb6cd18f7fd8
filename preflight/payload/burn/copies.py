"""How fast bytes move: inside of a device's memory, and between the device and each NUMA side."""

from __future__ import annotations

import os

from .bench import Bench, reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MIB = 1 << 20


def inside(bench: Bench, how: dict[str, Any]) -> list[dict[str, Any]]:
    """GB/s (1e9) of a copy within the device's memory; each byte is read once and written once."""
    size = how["mib"] * MIB
    one = bench.empty(size // 4, bench.torch.int32).fill_(1)
    other = bench.torch.empty_like(one)
    seconds = bench.samples(lambda: other.copy_(one), how)
    return [reading("memory_gbs", [2 * size / each / 1e9 for each in seconds])]


def across(
    bench: Bench, how: dict[str, Any], sides: list[tuple[int, list[int]]]
) -> list[dict[str, Any]]:
    """GB/s to the device and back, with host memory of each NUMA side in turn.

    The host's buffers are pinned, and written first by a CPU of their side. All are kept until the
    end: torch would hand a freed one out again, on whatever side it was.
    """
    size = how["mib"] * MIB
    own = bench.empty(size, bench.torch.uint8).fill_(1)
    before = os.sched_getaffinity(0)
    kept, events = [], []
    try:
        for side, cpus in sides:
            os.sched_setaffinity(0, cpus)
            host = bench.torch.empty(size, dtype=bench.torch.uint8, pin_memory=own.is_cuda)
            host.fill_(2)
            kept.append(host)
            for measure, to, source in (("h2d_gbs", own, host), ("d2h_gbs", host, own)):
                seconds = bench.samples(_copying(to, source), how)
                rates = [size / each / 1e9 for each in seconds]
                events.append(reading(measure, rates, side=side))
    finally:
        os.sched_setaffinity(0, before)
    return events


def _copying(to: Any, source: Any) -> Callable[[], object]:
    return lambda: to.copy_(source, non_blocking=True)
