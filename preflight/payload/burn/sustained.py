"""Whether a device holds its speed under a long load, and stays right while it is hot."""

from __future__ import annotations

import time

from . import clocks, exact, integrity
from .bench import reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .bench import Bench

_MOST_WINDOWS = 2000


def measure(bench: Bench, how: dict[str, Any]) -> list[dict[str, Any]]:
    """Multiply for `seconds`: TFLOPS of each window, the clocks in the middle of it, the bits.

    The clocks are read while the device has work queued: an idle GPU says nothing about heat.
    """
    torch, n = bench.torch, how["n"]
    one, other = exact.small(bench, n, n, 4), exact.small(bench, n, n, 5)
    right = torch.mm(one, other)
    out = torch.empty_like(right)

    def work() -> None:
        torch.mm(one, other, out=out)

    gauge = clocks.Gauge(bench)
    rates: list[float] = []
    looks, wrong, first = [gauge.look(0.0)], 0, ""
    times = bench.times(work, how["window_s"])
    began = time.perf_counter()
    while time.perf_counter() - began < how["seconds"] and len(rates) < _MOST_WINDOWS:
        bench.sync()
        at = time.perf_counter()
        for _ in range(times):
            work()
        if bench.kind == "cuda":
            looks.append(gauge.look(at - began))
        bench.sync()
        rates.append(times * 2 * n**3 / (time.perf_counter() - at) / 1e12)
        if not torch.equal(out, right):
            row, column = exact.place_of(out, right)
            first = first or f"element {row},{column} after {at - began:.1f} s"
            wrong += 1
    seen = [each for each in looks if each is not None]
    events = [reading("sustained_tflops", rates), {"event": "clocks", "looks": seen}]
    digest = exact.digest(bench, right) if bench.kind == "cuda" else ""
    size = f"{n}x{n}"
    events.append(integrity.proof("load", len(rates), wrong, first, digest=digest, size=size))
    return events
