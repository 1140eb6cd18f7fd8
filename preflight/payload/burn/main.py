"""The agent of one node's burn-in: loads its devices, then its paths; sends each result at once.

Each device has a process of its own. They all end with this process, and this process ends with its
controller, its lease or its deadline. Then it measures how fast data moves within the node:

Memory: a DIMM at half speed, or a powersave governor, slows every data loader.

NICs: perftest's server and client both run here, without a cable. A NIC at 400 Gb/s loads the
memory of its NUMA node with 50 GB/s each way, so each NUMA node runs one NIC at a time, in parallel
with the others.

GPUs: one pair at a time, since two pairs that share a link would disturb each other.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import Any

import children
from probe.node_files import MIB, attempt_raw, clean, cpus_in, names, numa
from start import Emit, Read
from sweep import agent, cuda, transports, verify

from . import crew
from .device import Bench, CpuWait, Sides, proof, reading

_PHASES = ("gemm", "memory", "integrity", "launch", "sustained", "pcie")
_LAST_WORDS_S = 6.0  # the controller stops listening 5 s before our deadline


def run(request: dict[str, Any], read_line: Read, emit: Emit) -> None:
    """Serve one burn-in; the events are those of preflight.facts.burn, docs/internals/wire.md."""
    ends = time.monotonic() + request["deadline_s"] - _LAST_WORDS_S
    agent.serve_controller(request, read_line, emit)
    children.adopt_orphans()
    lock = agent.claim(str(request["name"]))
    if lock is None:
        emit({"event": "busy", "error": agent.lock_holder(str(request["name"]))[0]})
        return
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML's order, not the fastest GPU first
    description = cuda.describe()
    if description["event"] == "no_torch":
        emit(description)
        return
    kind = "cuda" if description["cuda"] else "cpu"
    count = description["gpus"] if description["cuda"] else int(request["slots"])
    emit({"event": "ready", "torch": description["torch"], "kind": kind, "devices": count})
    if kind == "cuda" or not request["gpus"]:  # else this torch cannot use the node's GPUs
        _load(request["plan"][kind], kind, count, request.get("sysfs", "/sys"), emit, ends=ends)
    emit({"event": "done"})
    lock.close()


def _load(
    plan: dict[str, Any], kind: str, count: int, sysfs: str, emit: Emit, *, ends: float
) -> None:
    """Run the plan's phases; a device that fails in one takes no part in later ones.

    `ends`: when all results must be sent, by the monotonic clock.
    """
    sides = numa_sides(sysfs)
    workers = crew.Crew(kind, count, plan, sides, emit)
    phases = ["open", *(name for name in _PHASES if plan.get(name))]
    path_phases = [name for name in ("p2p", "host", "nic") if plan.get(name)]
    steps = len(phases) + len(path_phases)
    for done, phase in enumerate(phases):
        emit({"event": "step", "phase": phase, "done": done, "of": steps})
        workers.run(phase)
    devices = workers.dismiss()
    for done, phase in enumerate(path_phases, len(phases)):
        emit({"event": "step", "phase": phase, "done": done, "of": steps})
        if phase == "p2p":
            measure_pairs(kind, devices, plan, emit)
        elif phase == "host":
            measure_host(plan, sides, emit)
        else:
            nics_end = min(ends, time.monotonic() + float(plan["limit_s"]["nic"]))
            measure_nics(plan["nic"], sysfs, emit, sides, nics_end)


_MOST_THREADS = 64


def measure_host(plan: dict[str, Any], sides: Sides, emit: Emit) -> None:
    """Measure one NUMA node after another, each in a process of its own."""
    limit_s = float(plan["limit_s"]["host"])
    for side, cpus in sides:
        work = partial(_measure_memory, side, cpus, plan["host"])
        worker = crew.Worker("preflight-host", work)
        worker.order({})
        answer = worker.answer(time.monotonic() + limit_s, limit_s)
        for event in answer.events:
            emit(event)
        if answer.failure:
            error = f"NUMA node {side}: {answer.error}"[:500]
            emit({"event": "trouble", "what": "host", "error": error})
        else:
            worker.end()


def _measure_memory(
    side: int, cpus: list[int], spec: dict[str, Any], _order: dict[str, Any]
) -> list[dict[str, Any]]:
    """In the process of one NUMA node: measure once."""
    import torch

    os.sched_setaffinity(0, cpus)
    torch.set_num_threads(min(_MOST_THREADS, len(cpus)))
    bench, waited = Bench(torch, "cpu", 0), CpuWait()
    words = spec["mib"] * MIB // 8
    source = torch.ones(words, dtype=torch.float64)
    target = torch.empty_like(source)
    copies_s = bench.samples(lambda: target.copy_(source), spec)
    n = spec["n"]
    left, right, out = torch.ones(n, n), torch.ones(n, n), torch.empty(n, n)
    products_s = bench.samples(lambda: torch.mm(left, right, out=out), spec)
    fields = {"side": side, "waited": waited.share(), "threads": torch.get_num_threads()}
    rates = [2 * words * 8 / copy_s / 1e9 for copy_s in copies_s]
    flops = [2 * n**3 / product_s / 1e9 for product_s in products_s]
    return [reading("host_copy_gbs", rates, **fields), reading("host_gflops", flops, **fields)]


_NODE = re.compile(r"node(\d{1,4})$")


def numa_sides(sysfs: str) -> Sides:
    """Each NUMA node with those of its CPUs that this process may use; one node without sysfs."""
    allowed = os.sched_getaffinity(0)
    folder = sysfs + "/devices/system/node"
    nodes = []
    for name in names(folder):
        match = _NODE.match(name)
        try:
            cpus = cpus_in(attempt_raw(f"{folder}/{name}/cpulist").decode("ascii"))
        except ValueError:
            cpus = []
        usable = [cpu for cpu in cpus if cpu in allowed]
        if match and usable:
            nodes.append((int(match.group(1)), usable))
    return sorted(nodes) or [(0, sorted(allowed))]


TOOL = "ib_write_bw"
_LISTENS_S = 0.3
_AVERAGE = 3  # #bytes, #iterations, BW peak, BW average, MsgRate


def measure_nics(spec: dict[str, Any], sysfs: str, emit: Emit, sides: Sides, ends: float) -> None:
    """Measure the loopback of each active NIC; a failure is reported in the tool's words.

    `ends`: by the monotonic clock. Except for the first NIC of each NUMA node, no NIC starts that
    would not finish by then; those left out are reported. `spec["first"]` selects the first NIC.
    """
    folder = sysfs + "/class/infiniband"
    ports = active(folder)
    tool = shutil.which(TOOL)
    if tool is None or not ports:
        why = f"{TOOL} (perftest) is not installed" if ports else "no RDMA NIC with an active port"
        emit({"event": "absent", "what": "nic", "error": why})
        return

    def take_turns(lane: list[tuple[str, int]], cpus: list[int]) -> list[str]:
        """Measure one NIC after another; return the names of those that were left out."""
        longest_s, left = -math.inf, list(lane)
        with suppress(OSError):
            if cpus:
                os.sched_setaffinity(0, cpus)  # of this thread and the processes it starts
        while left and time.monotonic() + longest_s <= ends:
            began = time.monotonic()
            emit(_measure_nic(tool, *left.pop(0), spec))
            longest_s = max(longest_s, time.monotonic() - began)
        return [name for name, _ in left]

    lanes = _lanes(folder, ports, spec["first"])
    cpus_of_lanes = [dict(sides).get(side, []) if side is not None else [] for side in lanes]
    with ThreadPoolExecutor(len(lanes)) as threads:
        rows = threads.map(take_turns, lanes.values(), cpus_of_lanes)
        left_out = [name for row in rows for name in row]
    if left_out:
        emit({"event": "no_time", "what": "nic", "names": sorted(left_out)})


def _lanes(
    folder: str, ports: list[tuple[str, int]], first: int
) -> dict[int | None, list[tuple[str, int]]]:
    """The NICs of each NUMA node, from the `first` on; all in one lane if a NUMA node is unknown.

    In a virtual machine the NUMA nodes, and so what NICs share, are unknown.
    """
    sides = {name: numa(f"{folder}/{name}/device") for name, _ in ports}
    complete = None not in sides.values()
    lanes: dict[int | None, list[tuple[str, int]]] = {}
    for name, port in ports:
        lanes.setdefault(sides[name] if complete else None, []).append((name, port))
    return {
        side: lane[first % len(lane) :] + lane[: first % len(lane)] for side, lane in lanes.items()
    }


def _measure_nic(tool: str, name: str, port: int, spec: dict[str, Any]) -> dict[str, Any]:
    rates: list[float] = []
    error = ""
    for _ in range(spec["samples"]):
        try:
            rate, error = _loopback(tool, name, port, spec)
        except OSError as failure:
            rate, error = None, str(failure)
        if rate is None:
            break
        rates.append(rate)
    if rates:
        return reading("nic_gbits", rates, name=name)
    return {"event": "trouble", "what": "nic", "error": f"{name}: {error}"[:500]}


def active(folder: str) -> list[tuple[str, int]]:
    """(device, port) of the first active port of each device."""
    ports = {name: transports.active(f"{folder}/{name}") for name in names(folder)}
    numbers = {name: [int(port) for port in row if port.isdigit()] for name, row in ports.items()}
    return [(clean(name, 64), row[0]) for name, row in numbers.items() if row]


def parse_average(printed: str) -> float | None:
    """Gb/s in the last line of numbers; None where there is none."""
    for line in reversed(printed.splitlines()):
        fields = line.split()
        if len(fields) > _AVERAGE and fields[0].isdigit() and fields[1].isdigit():
            try:
                rate = float(fields[_AVERAGE])
            except ValueError:
                return None
            return rate if 0 < rate < 1e5 else None  # noqa: PLR2004 - Gb/s, and no NaN
    return None


def _loopback(tool: str, name: str, port: int, spec: dict[str, Any]) -> tuple[float | None, str]:
    """Run server and client once; return the rate, or why there is none."""
    words = [tool, "-d", name, "-i", str(port), "-p", str(_free_port()), "-F", "--report_gbits"]
    words += ["-D", str(spec["seconds"]), "-s", str(spec["bytes"])]
    server = _start(words)
    time.sleep(_LISTENS_S)
    client = _start([*words, "127.0.0.1"])
    try:
        output = client.communicate(timeout=spec["seconds"] + spec["patience_s"])[0]
    except subprocess.TimeoutExpired:
        printed, error = "", "it did not end in time"
    else:
        printed = output.decode("utf-8", "replace").strip()
        error = clean(printed[-200:]) or "it printed nothing"
    for process in (client, server):
        _end(process)
    rate = parse_average(printed)
    return rate, "" if rate is not None else error


def _start(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with suppress(subprocess.TimeoutExpired):  # in D state, which no signal ends
        process.communicate(timeout=1.0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_MOST_FAILURES = 3


def measure_pairs(kind: str, devices: list[int], plan: dict[str, Any], emit: Emit) -> None:
    """Measure all pairs of the remaining devices; a pair that hangs is reported and skipped."""
    pairs = list(combinations(devices, 2))
    worker, failures = None, 0
    while pairs and failures < _MOST_FAILURES:
        to_open, limit_s = [], float(plan["limit_s"]["p2p"])
        if worker is None:
            worker = crew.Worker("preflight-p2p", partial(_copy_pair, kind, plan["p2p"]))
            if kind == "cuda":
                to_open = sorted({index for pair in pairs for index in pair})
                limit_s += float(plan["limit_s"]["open"])
        a, b = pairs.pop(0)
        worker.order({"open": to_open, "a": a, "b": b})
        answer = worker.answer(time.monotonic() + limit_s, limit_s)
        for event in answer.events:
            emit(event)
        if answer.failure:
            emit(crew.lost_event(a, "p2p", answer, target=b))
            worker, failures = None, failures + 1
    if worker is not None:
        worker.end()


def _copy_pair(kind: str, spec: dict[str, Any], order: dict[str, Any]) -> list[dict[str, Any]]:
    """In the process of the pairs: copy between the two GPUs of one, both ways."""
    import torch

    torch.set_num_threads(1)
    a, b = order["a"], order["b"]
    for index in order["open"]:
        cuda.initialise(torch, index)
    return [*_copy(torch, kind, a, b, spec), *_copy(torch, kind, b, a, spec)]


def _copy(torch: Any, kind: str, a: int, b: int, spec: dict[str, Any]) -> list[dict[str, Any]]:
    source, target = Bench(torch, kind, a), Bench(torch, kind, b)
    words = spec["mib"] * MIB // 4
    data = source.empty(words, torch.int32)
    verify.fill(torch, data, verify.key(6, a, b))
    copy = target.empty(words, torch.int32).fill_(0)
    bench = _TwoDevices(source, target)
    seconds = bench.samples(lambda: copy.copy_(data, non_blocking=True), spec)
    rates = [words * 4 / copy_s / 1e9 for copy_s in seconds]
    expected = target.empty(words, torch.int32)
    verify.fill(torch, expected, verify.key(6, a, b))
    wrong = int((copy != expected).sum().item())
    first = f"{wrong} of {words} words are not what was sent" if wrong else ""
    event = proof("p2p", len(rates), wrong, first, size=f"{spec['mib']} MiB")
    rate = reading("p2p_gbs", rates, device=a, to=b)
    return [rate, dict(event, device=a, to=b)]


class _TwoDevices(Bench):
    """Two devices: a copy is complete when both have finished."""

    def __init__(self, source: Bench, target: Bench) -> None:
        super().__init__(source.torch, source.kind, source.device.index or 0)
        self._target = target

    def sync(self) -> None:
        super().sync()
        self._target.sync()
