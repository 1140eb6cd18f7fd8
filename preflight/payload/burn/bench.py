"""How fast one device does one piece of work: several samples, each long enough for the clock."""

from __future__ import annotations

import math
import os
import time

from sweep import clocks, counters, transports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MOST_TIMES = 100_000
_LEAST_S = 1e-7
_TRIES = 5


class Bench:
    """One device: a GPU, or one CPU that stands for it where there is none."""

    def __init__(self, torch: Any, kind: str, index: int) -> None:
        self.torch = torch
        self.kind = kind
        self.device = torch.device("cuda", index) if kind == "cuda" else torch.device("cpu")

    def sync(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.kind == "cuda":
            self.torch.cuda.synchronize(self.device)

    def bus_id(self) -> str:
        """The PCI address of a GPU as sysfs spells it; "" where nobody tells."""
        return transports.bus_id(self.torch, self.device.index, _by_nvml) or ""

    def empty(self, count: int, dtype: Any) -> Any:
        """A buffer on the device."""
        return self.torch.empty(count, dtype=dtype, device=self.device)

    def seconds(self, work: Callable[[], object], times: int) -> float:
        """How long so many repetitions take together, until the device has done the last."""
        self.sync()
        began = time.perf_counter()
        for _ in range(times):
            work()
        self.sync()
        return max(_LEAST_S, time.perf_counter() - began)

    def samples(self, work: Callable[[], object], how: dict[str, Any]) -> list[float]:
        """Seconds per repetition, one number for each of `samples` runs of about `sample_s`.

        `warm_s` before them is for clocks to come up and for libraries to choose their kernels.
        """
        self.seconds(work, 1)
        times = self.times(work, how["sample_s"])
        ends = time.perf_counter() + how["warm_s"]
        while time.perf_counter() < ends:
            self.seconds(work, times)
        return [self.seconds(work, times) / times for _ in range(how["samples"])]

    def times(self, work: Callable[[], object], within_s: float) -> int:
        """How many repetitions fill that time where nothing holds them up; at least 1.

        By the quickest of a few: after a stall one repetition would seem to fill it, and a sample
        so short may slip through between two stalls of a slow device.
        """
        once = min(self.seconds(work, 2) / 2 for _ in range(_TRIES))
        return max(1, min(_MOST_TIMES, math.ceil(within_s / once)))


def _by_nvml(uuid: str) -> str | None:
    return counters.Gpus().bus_id(uuid)  # it may hang, as all that this process does


def reading(measure: str, samples: list[float], **where: Any) -> dict[str, Any]:
    """The event for one series: what was measured, between whom, and every sample."""
    return {
        "event": "reading",
        "measure": measure,
        "samples": [float(f"{sample:.6g}") for sample in samples],
        **where,
    }


class Waited:
    """The share of its time for which this process was ready to run and had no CPU."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = clocks.waited_s(os.getpid())

    def share(self) -> float:
        """Since this was made, of the thread that waited most; 0 where the kernel tells nothing."""
        elapsed_s = max(1e-3, time.monotonic() - self._began)
        now = clocks.waited_s(os.getpid())
        most = max((now[name] - self._before.get(name, 0.0) for name in now), default=0.0)
        return round(min(1.0, max(0.0, most / elapsed_s)), 4)
