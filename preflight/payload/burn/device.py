"""The process of one device, phase by phase; no other process of ours uses its GPU.

A rate has several samples, each long enough for the clock.
"""

from __future__ import annotations

import math
import os
import time
from functools import partial
from typing import Any, Callable, List, Tuple

from probe.node_files import MIB, clean, numa
from sweep import clocks, counters, cuda, transports, verify

Sides = List[Tuple[int, List[int]]]
"""Each NUMA node, and its CPUs."""


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

    def samples(self, work: Callable[[], object], spec: dict[str, Any]) -> list[float]:
        """Return seconds per repetition, for each of `samples` runs of about `sample_s`.

        `warm_s` before them lets clocks rise, and libraries choose their kernels.
        """
        self.seconds(work, 1)
        times = self.times(work, spec["sample_s"])
        ends = time.perf_counter() + spec["warm_s"]
        while time.perf_counter() < ends:
            self.seconds(work, times)
        return [self.seconds(work, times) / times for _ in range(spec["samples"])]

    def times(self, work: Callable[[], object], within_s: float) -> int:
        """How many repetitions fill `within_s` without a stall; at least 1.

        The quickest of a few counts: after a stall one repetition would seem to fill the time, and
        such short samples may fall between the stalls of a slow device.
        """
        once_s = min(self.seconds(work, 2) / 2 for _ in range(_TRIES))
        return max(1, min(_MOST_TIMES, math.ceil(within_s / once_s)))


def reading(measure: str, samples: list[float], **where: Any) -> dict[str, Any]:
    """The event for one series: the measure, the devices, and every sample."""
    return {
        "event": "reading",
        "measure": measure,
        "samples": [float(f"{sample:.6g}") for sample in samples],
        **where,
    }


class CpuWait:
    """Measures the share of time in which this process was ready to run but had no CPU."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._waited_s = clocks.waited_s(os.getpid())

    def share(self) -> float:
        """The share of the thread that waited most; 0 where the kernel does not report it."""
        elapsed_s = max(1e-3, time.monotonic() - self._began)
        longest_s = clocks.longest_wait_s(self._waited_s, os.getpid())
        return round(min(1.0, max(0.0, longest_s / elapsed_s)), 4)


def measure_memory(bench: Bench, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """GB/s (1e9) of a copy within the device's memory; each byte is read once and written once."""
    size = spec["mib"] * MIB
    source = bench.empty(size // 4, bench.torch.int32).fill_(1)
    target = bench.torch.empty_like(source)
    seconds = bench.samples(lambda: target.copy_(source), spec)
    return [reading("memory_gbs", [2 * size / copy_s / 1e9 for copy_s in seconds])]


def measure_pcie(bench: Bench, spec: dict[str, Any], sides: Sides) -> list[dict[str, Any]]:
    """GB/s to the device and back, with host memory of each NUMA node in turn.

    The host's buffers are pinned, and first written by a CPU of their NUMA node. All are kept until
    the end: torch would reuse a freed one on any NUMA node.
    """
    size = spec["mib"] * MIB
    device = bench.empty(size, bench.torch.uint8).fill_(1)
    allowed = os.sched_getaffinity(0)
    buffers, events = [], []
    try:
        for side, cpus in sides:
            os.sched_setaffinity(0, cpus)
            host = bench.torch.empty(size, dtype=bench.torch.uint8, pin_memory=device.is_cuda)
            host.fill_(2)
            buffers.append(host)
            for measure, target, source in (("h2d_gbs", device, host), ("d2h_gbs", host, device)):
                seconds = bench.samples(partial(target.copy_, source, non_blocking=True), spec)
                rates = [size / copy_s / 1e9 for copy_s in seconds]
                events.append(reading(measure, rates, side=side))
    finally:
        os.sched_setaffinity(0, allowed)
    return events


def measure_gemm(bench: Bench, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """TFLOPS of an n x n x n product of random numbers, 2 n^3 operations each."""
    torch, n = bench.torch, spec["n"]
    torch.manual_seed(1)  # the same numbers for all: a product's power depends on them
    left = torch.randn(n, n, device=bench.device).to(torch.bfloat16)
    right = torch.randn(n, n, device=bench.device).to(torch.bfloat16)
    out = torch.empty_like(left)
    seconds = bench.samples(lambda: torch.mm(left, right, out=out), spec)
    return [reading("gemm_tflops", [2 * n**3 / product_s / 1e12 for product_s in seconds])]


def measure_launch(bench: Bench, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Microseconds to launch and synchronize; each sample is the median of many."""
    once = partial(bench.torch.zeros(1, device=bench.device).add_, 1)
    for _ in range(spec["launches"]):
        once()
    samples = []
    for _ in range(spec["samples"]):
        launches = sorted(bench.seconds(once, 1) for _ in range(spec["launches"]))
        samples.append(launches[len(launches) // 2] * 1e6)
    return [reading("launch_us", samples)]


# Integrity: one exact product, repeated, which must be correct and the same each time; and patterns
# over most of the free memory, written, read back, inverted and read back again. All sums are exact
# in the format, so neither the order of additions nor the library's kernel changes a bit: any
# difference is an error of arithmetic, memory or wiring.
_ROWS = 1024
_EXACT_WORD = 2**64


def signs(bench: Bench, rows: int, columns: int, key: int) -> Any:
    """A bf16 matrix of +1 and -1 in a fixed pattern: sums of 256 products are exact."""
    words = (_words(bench, rows * columns, key) & 1).mul_(2).sub_(1)
    return words.to(bench.torch.bfloat16).view(rows, columns)


def small_numbers(bench: Bench, rows: int, columns: int, key: int) -> Any:
    """A bf16 matrix of whole numbers from -15 to 16; sums of 8,192 products are below 2^22."""
    words = (_words(bench, rows * columns, key) & 31).sub_(15)
    return words.to(bench.torch.bfloat16).view(rows, columns)


def first_wrong_row(bench: Bench, left: Any, right: Any, product: Any) -> int | None:
    """The first row in which `product` is not left x right; None if all are correct.

    Freivalds' algorithm: product v = left (right v) for a vector of odd numbers. All of it is exact
    in float64, so any single wrong element shows.
    """
    double = bench.torch.float64
    weights = ((_words(bench, right.shape[1], 7) & 0xFFFF) | 1).to(double)
    inner = _times(bench, right, weights)
    differs = _times(bench, product, weights) != _times(bench, left, inner)
    return int(differs.nonzero()[0].item()) if bool(differs.any().item()) else None


def digest_of(bench: Bench, product: Any) -> str:
    """A hash (16 hex digits) of all bits: equal on all devices that computed correctly."""
    torch = bench.torch
    bits = product.contiguous().view(torch.int16).view(-1)
    total, width = 0, _ROWS * _ROWS
    for start in range(0, bits.numel(), width):
        chunk = bits[start : start + width].to(torch.int64).add_(65537)
        weights = torch.arange(start, start + chunk.numel(), dtype=torch.int64, device=chunk.device)
        total += int(chunk.mul_(weights.mul_(2).add_(1)).sum().item())
    return f"{total % _EXACT_WORD:016x}"


def first_difference(result: Any, expected: Any) -> tuple[int, int]:
    """(row, column) of the first element that differs."""
    flat = int((result != expected).view(-1).nonzero()[0].item())
    columns = int(result.shape[1])
    return flat // columns, flat % columns


def _times(bench: Bench, matrix: Any, vector: Any) -> Any:
    """The product in float64, some rows at a time: the whole would take four times the memory."""
    parts = [
        matrix[start : start + _ROWS].to(bench.torch.float64) @ vector
        for start in range(0, matrix.shape[0], _ROWS)
    ]
    return bench.torch.cat(parts)


def _words(bench: Bench, count: int, key: int) -> Any:
    buffer = bench.empty(count, bench.torch.int32)
    verify.fill(bench.torch, buffer, verify.key(key, 0, 0))
    return buffer


_WORD = 2**32


def prove(bench: Bench, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Run both proofs, of arithmetic and of memory."""
    return [_product(bench, spec), _memory(bench, spec)]


def proof(what: str, rounds: int, wrong: int, first: str = "", **more: Any) -> dict[str, Any]:
    """The event of a proof: how often it ran, how often it was wrong, and where first."""
    return {
        "event": "proof",
        "what": what,
        "rounds": rounds,
        "wrong": wrong,
        "first": first,
        **more,
    }


def _product(bench: Bench, spec: dict[str, Any]) -> dict[str, Any]:
    torch, n, k = bench.torch, spec["n"], spec["k"]
    left, right = signs(bench, n, k, 1), signs(bench, k, n, 2)
    product = torch.mm(left, right)
    row = first_wrong_row(bench, left, right, product)
    wrong, first = int(row is not None), "" if row is None else f"row {row} of {n} in product 1"
    repeated = torch.empty_like(product)
    for number in range(2, spec["products"] + 1):
        torch.mm(left, right, out=repeated)
        if not torch.equal(repeated, product):
            index = first_difference(repeated, product)
            value, earlier = float(repeated[index].item()), float(product[index].item())
            words = f"element {index[0]},{index[1]} came out as {value:g} in product {number}"
            first = first or f"{words}, before as {earlier:g}"
            wrong += 1
    digest = digest_of(bench, product)
    size = f"{n}x{k}"
    return proof("product", spec["products"], wrong, first, digest=digest, size=size)


def _memory(bench: Bench, spec: dict[str, Any]) -> dict[str, Any]:
    torch = bench.torch
    words = spec["chunk_mib"] * MIB // 4
    count = max(1, _memory_to_test(bench, spec) // (words * 4) - 1)
    chunks = [bench.empty(words, torch.int32) for _ in range(count)]
    expected = bench.empty(words, torch.int32)
    wrong, first = 0, ""
    for turn in range(spec["patterns"]):
        for place, chunk in enumerate(chunks):
            verify.fill(torch, chunk, verify.key(3, turn, place))
        for inverted in (False, True):
            for place, chunk in enumerate(chunks):
                verify.fill(torch, expected, verify.key(3, turn, place))
                if inverted:
                    expected.bitwise_not_()
                if not torch.equal(chunk, expected):
                    wrong += int((chunk != expected).sum().item())
                    first = first or _describe_word(chunk, expected, place * words)
                if not inverted:
                    chunk.bitwise_not_()
    mib = count * spec["chunk_mib"]
    return proof("memory", 2 * spec["patterns"], wrong, first, size=f"{mib} MiB")


def _memory_to_test(bench: Bench, spec: dict[str, Any]) -> int:
    """Bytes to write: a share of the memory that is free now, up to a limit."""
    limit = spec["most_mib"] * MIB
    if bench.kind != "cuda":
        return int(limit)
    bench.torch.cuda.empty_cache()
    free = bench.torch.cuda.mem_get_info(bench.device)[0]
    return int(min(limit, free * spec["share"]))


def _describe_word(chunk: Any, expected: Any, offset: int) -> str:
    index = int((chunk != expected).nonzero()[0].item())
    got, wanted = (int(buffer[index].item()) % _WORD for buffer in (chunk, expected))
    return f"word {offset + index} is 0x{got:08x}, must be 0x{wanted:08x}"


_SM_CLOCK = 1  # nvml.h: nvmlClockType_t


def gpu_of(bench: Bench) -> counters.Gpu | None:
    """NVML's view of the bench's GPU, found by its PCI address; None without NVML."""
    address = bench.bus_id() if bench.kind == "cuda" else ""
    gpus = counters.Gpus().by_bus_id(address) if address else []
    return gpus[0] if gpus else None


def read_clocks(gpu: counters.Gpu) -> dict[str, Any]:
    """One reading of a GPU's clock, temperature and power, and of what throttles it."""
    milliwatts = gpu.ask("PowerUsage")
    return {
        "sm_mhz": gpu.ask("ClockInfo", _SM_CLOCK),
        "celsius": gpu.ask("Temperature", 0),  # NVML_TEMPERATURE_GPU
        "watts": None if milliwatts is None else milliwatts / 1000,
        "reasons": gpu.throttled(),
    }


_MOST_WINDOWS = 2000


def measure_sustained(bench: Bench, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Multiply for `seconds`: TFLOPS and clocks of each window, and whether results are exact.

    The clocks are read while the device has work queued: an idle GPU is not hot.
    """
    torch, n = bench.torch, spec["n"]
    left, right = small_numbers(bench, n, n, 4), small_numbers(bench, n, n, 5)
    expected = torch.mm(left, right)
    out = torch.empty_like(expected)
    work = partial(torch.mm, left, right, out=out)
    gpu = gpu_of(bench)
    rates: list[float] = []
    looks, wrong, first = [read_clocks(gpu)] if gpu else [], 0, ""
    times = bench.times(work, spec["window_s"])
    began = time.perf_counter()
    while time.perf_counter() - began < spec["seconds"] and len(rates) < _MOST_WINDOWS:
        bench.sync()
        window_began = time.perf_counter()
        for _ in range(times):
            work()
        if gpu is not None:
            looks.append(read_clocks(gpu))
        bench.sync()
        rates.append(times * 2 * n**3 / (time.perf_counter() - window_began) / 1e12)
        if not torch.equal(out, expected):
            row, column = first_difference(out, expected)
            first = first or f"element {row},{column} after {window_began - began:.1f} s"
            wrong += 1
    events = [reading("sustained_tflops", rates), {"event": "clocks", "looks": looks}]
    digest = digest_of(bench, expected) if bench.kind == "cuda" else ""
    size = f"{n}x{n}"
    events.append(proof("load", len(rates), wrong, first, digest=digest, size=size))
    return events


_PHASES = {
    "gemm": measure_gemm,
    "memory": measure_memory,
    "integrity": prove,
    "launch": measure_launch,
    "sustained": measure_sustained,
}


def work(
    order: dict[str, Any], *, kind: str, index: int, plan: dict[str, Any], sides: Sides
) -> list[dict[str, Any]]:
    """In the process of one device: run the ordered phase, and return its events."""
    import torch  # already loaded by the agent

    torch.set_num_threads(1)
    bench, phase, waited = Bench(torch, kind, index), order["phase"], CpuWait()
    if phase == "open":
        events = [_open_device(bench, index, sides)]
    elif phase == "pcie":
        events = measure_pcie(bench, plan[phase], sides)
    else:
        events = _PHASES[phase](bench, plan[phase])
    share = waited.share()
    return [dict(e, waited=share) if e["event"] == "reading" else e for e in events]


def _open_device(bench: Bench, index: int, sides: Sides) -> dict[str, Any]:
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
        event["numa"] = numa("/sys/bus/pci/devices/" + event["bus_id"])
    near = dict(sides).get(event["numa"])
    if near:
        os.sched_setaffinity(0, near)
    return event
