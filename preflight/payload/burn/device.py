"""The process of one device, phase by phase; no other process of ours uses its GPU.

A rate has several samples, each long enough for the clock.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any, List, Tuple

from probe import node_files
from probe.node_files import clean
from sweep import clocks, counters, cuda, transports

from . import integrity

Sides = List[Tuple[int, List[int]]]
"""Each NUMA node, and its CPUs."""


MIB = 1 << 20
_MOST_TIMES = 100_000
_LEAST_S = 1e-7
_TRIES = 5


class Bench:
    """One device: a GPU, or one CPU in place of a GPU."""

    def __init__(self, torch: Any, kind: str, index: int) -> None:
        self.torch = torch
        self.kind = kind
        self.device = torch.device("cuda", index) if kind == "cuda" else torch.device("cpu")

    def sync(self) -> None:
        """Wait until the device has finished all its work."""
        if self.kind == "cuda":
            self.torch.cuda.synchronize(self.device)

    def bus_id(self) -> str:
        """The PCI address of a GPU as in sysfs; "" where not known."""
        return transports.bus_id(self.torch, self.device.index) or ""

    def empty(self, count: int, dtype: Any) -> Any:
        """Return an uninitialized buffer on the device."""
        return self.torch.empty(count, dtype=dtype, device=self.device)

    def seconds(self, work: Callable[[], object], times: int) -> float:
        """Seconds for `times` repetitions together, until the device has finished the last."""
        self.sync()
        began = time.perf_counter()
        for _ in range(times):
            work()
        self.sync()
        return max(_LEAST_S, time.perf_counter() - began)

    def samples(self, work: Callable[[], object], how: dict[str, Any]) -> list[float]:
        """Seconds per repetition, for each of `samples` runs of about `sample_s`.

        `warm_s` before them lets clocks rise, and libraries choose their kernels.
        """
        self.seconds(work, 1)
        times = self.times(work, how["sample_s"])
        ends = time.perf_counter() + how["warm_s"]
        while time.perf_counter() < ends:
            self.seconds(work, times)
        return [self.seconds(work, times) / times for _ in range(how["samples"])]

    def times(self, work: Callable[[], object], within_s: float) -> int:
        """How many repetitions fill `within_s` without a stall; at least 1.

        The quickest of a few counts: after a stall one repetition would seem to fill the time, and
        such short samples may fall between the stalls of a slow device.
        """
        once = min(self.seconds(work, 2) / 2 for _ in range(_TRIES))
        return max(1, min(_MOST_TIMES, math.ceil(within_s / once)))


def reading(measure: str, samples: list[float], **where: Any) -> dict[str, Any]:
    """The event for one series: the measure, the devices, and every sample."""
    return {
        "event": "reading",
        "measure": measure,
        "samples": [float(f"{sample:.6g}") for sample in samples],
        **where,
    }


class Waited:
    """Measures the share of time in which this process was ready to run but had no CPU."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = clocks.waited_s(os.getpid())

    def share(self) -> float:
        """The share of the thread that waited most; 0 where the kernel does not report it."""
        elapsed_s = max(1e-3, time.monotonic() - self._began)
        most = clocks.longest_wait_s(self._before, os.getpid())
        return round(min(1.0, max(0.0, most / elapsed_s)), 4)


def inside(bench: Bench, how: dict[str, Any]) -> list[dict[str, Any]]:
    """GB/s (1e9) of a copy within the device's memory; each byte is read once and written once."""
    size = how["mib"] * MIB
    source = bench.empty(size // 4, bench.torch.int32).fill_(1)
    target = bench.torch.empty_like(source)
    seconds = bench.samples(lambda: target.copy_(source), how)
    return [reading("memory_gbs", [2 * size / copy_s / 1e9 for copy_s in seconds])]


def across(bench: Bench, how: dict[str, Any], sides: Sides) -> list[dict[str, Any]]:
    """GB/s to the device and back, with host memory of each NUMA node in turn.

    The host's buffers are pinned, and first written by a CPU of their NUMA node. All are kept until
    the end: torch would reuse a freed one on any NUMA node.
    """
    size = how["mib"] * MIB
    own = bench.empty(size, bench.torch.uint8).fill_(1)
    before = os.sched_getaffinity(0)
    buffers, events = [], []
    try:
        for side, cpus in sides:
            os.sched_setaffinity(0, cpus)
            host = bench.torch.empty(size, dtype=bench.torch.uint8, pin_memory=own.is_cuda)
            host.fill_(2)
            buffers.append(host)
            for measure, to, source in (("h2d_gbs", own, host), ("d2h_gbs", host, own)):
                seconds = bench.samples(_copying(to, source), how)
                rates = [size / copy_s / 1e9 for copy_s in seconds]
                events.append(reading(measure, rates, side=side))
    finally:
        os.sched_setaffinity(0, before)
    return events


def _copying(to: Any, source: Any) -> Callable[[], object]:
    return lambda: to.copy_(source, non_blocking=True)


def measure(bench: Bench, how: dict[str, Any]) -> list[dict[str, Any]]:
    """TFLOPS of an n x n x n product of random numbers, 2 n^3 operations each."""
    torch, n = bench.torch, how["n"]
    torch.manual_seed(1)  # the same numbers for all: a product's power depends on them
    left = torch.randn(n, n, device=bench.device).to(torch.bfloat16)
    right = torch.randn(n, n, device=bench.device).to(torch.bfloat16)
    out = torch.empty_like(left)
    seconds = bench.samples(lambda: torch.mm(left, right, out=out), how)
    return [reading("gemm_tflops", [2 * n**3 / product_s / 1e12 for product_s in seconds])]


def measure_launch(bench: Bench, how: dict[str, Any]) -> list[dict[str, Any]]:
    """Microseconds to launch and synchronize; each sample is the median of many."""
    number = bench.torch.zeros(1, device=bench.device)

    def once() -> None:
        number.add_(1)

    for _ in range(how["launches"]):
        once()
    samples = []
    for _ in range(how["samples"]):
        launches = sorted(bench.seconds(once, 1) for _ in range(how["launches"]))
        samples.append(launches[len(launches) // 2] * 1e6)
    return [reading("launch_us", samples)]


_SM_CLOCK = 1  # nvml.h: nvmlClockType_t


class Gauge:
    """NVML readings of one GPU, found by its PCI address; none without NVML."""

    def __init__(self, bench: Bench) -> None:
        address = bench.bus_id() if bench.kind == "cuda" else ""
        self._gpus = counters.Gpus().by_bus_id(address) if address else []

    def look(self) -> dict[str, Any] | None:
        """One reading; None without NVML."""
        if not self._gpus:
            return None
        (gpu,) = self._gpus
        milliwatts = gpu.ask("PowerUsage")
        return {
            "sm_mhz": gpu.ask("ClockInfo", _SM_CLOCK),
            "celsius": gpu.ask("Temperature", 0),  # NVML_TEMPERATURE_GPU
            "watts": None if milliwatts is None else milliwatts / 1000,
            "reasons": gpu.throttled(),
        }


_MOST_WINDOWS = 2000


def measure_sustained(bench: Bench, how: dict[str, Any]) -> list[dict[str, Any]]:
    """Multiply for `seconds`: TFLOPS and clocks of each window, and whether results are exact.

    The clocks are read while the device has work queued: an idle GPU is not hot.
    """
    torch, n = bench.torch, how["n"]
    left, right = integrity.small(bench, n, n, 4), integrity.small(bench, n, n, 5)
    expected = torch.mm(left, right)
    out = torch.empty_like(expected)

    def work() -> None:
        torch.mm(left, right, out=out)

    gauge = Gauge(bench)
    rates: list[float] = []
    looks, wrong, first = [gauge.look()], 0, ""
    times = bench.times(work, how["window_s"])
    began = time.perf_counter()
    while time.perf_counter() - began < how["seconds"] and len(rates) < _MOST_WINDOWS:
        bench.sync()
        at = time.perf_counter()
        for _ in range(times):
            work()
        if bench.kind == "cuda":
            looks.append(gauge.look())
        bench.sync()
        rates.append(times * 2 * n**3 / (time.perf_counter() - at) / 1e12)
        if not torch.equal(out, expected):
            row, column = integrity.place_of(out, expected)
            first = first or f"element {row},{column} after {at - began:.1f} s"
            wrong += 1
    readings = [look for look in looks if look is not None]
    events = [reading("sustained_tflops", rates), {"event": "clocks", "looks": readings}]
    digest = integrity.digest_of(bench, expected) if bench.kind == "cuda" else ""
    size = f"{n}x{n}"
    events.append(integrity.proof("load", len(rates), wrong, first, digest=digest, size=size))
    return events


_PHASES = {
    "gemm": measure,
    "memory": inside,
    "integrity": integrity.prove,
    "launch": measure_launch,
    "sustained": measure_sustained,
}


def work(
    order: dict[str, Any], *, kind: str, index: int, plan: dict[str, Any], sides: Sides
) -> list[dict[str, Any]]:
    """In the process of one device: run the ordered phase, and return its events."""
    import torch  # already loaded by the agent

    torch.set_num_threads(1)
    bench, phase, waited = Bench(torch, kind, index), order["phase"], Waited()
    if phase == "open":
        events = [_open(bench, index, sides)]
    elif phase == "pcie":
        events = across(bench, plan[phase], sides)
    else:
        events = _PHASES[phase](bench, plan[phase])
    share = waited.share()
    return [dict(e, waited=share) if e["event"] == "reading" else e for e in events]


def _open(bench: Bench, index: int, sides: Sides) -> dict[str, Any]:
    """Create the CUDA context, and bind the process to the CPUs next to its device."""
    event: dict[str, Any] = {"event": "opened", "name": "CPU", "bus_id": "", "numa": None}
    if bench.kind == "cpu":
        cpus = sorted(os.sched_getaffinity(0))
        cpu = cpus[index % len(cpus)]
        os.sched_setaffinity(0, {cpu})
        event["name"] = f"CPU {cpu}"
        return event
    torch = bench.torch
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    cuda.initialise(torch, index)
    torch.ones(1, device=bench.device).add_(1)
    bench.sync()
    properties = torch.cuda.get_device_properties(bench.device)
    event["name"] = clean(properties.name)
    event["bus_id"] = bench.bus_id()
    if event["bus_id"]:
        event["numa"] = node_files.numa("/sys/bus/pci/devices/" + event["bus_id"])
    near = dict(sides).get(event["numa"]) if event["numa"] is not None else None
    if near:
        os.sched_setaffinity(0, near)
    return event
