"""Counters of ranks, ports and GPUs at one moment, and their changes between two."""

from __future__ import annotations

import re
import time
from functools import partial
from typing import Any

import children
from probe import guard, node_files, processes, procfs, rdma
from probe.node_files import MIB, attempt, clean, names, number, safe_name
from probe.nvml_calls import NoDriver, Nvml, load, reasons
from probe.processes import Care

from . import Document, sockets
from .node_ranks import Patience

_ROOTS = {2: ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), 1: ("/sys/fs/cgroup/memory",)}
_FILES = {2: "memory.events", 1: "memory.oom_control"}
_KILLS = re.compile(r"\boom_kill (\d{1,15})\b")
_JOB = re.compile(r"/job_\d+(?=/|$)")
"""Slurm limits the memory of a job as a whole: its ranks are groups below."""


def oom_kills(pid: int) -> int:
    """Return how many processes of its group, or of the job's, were killed; 0 if not known."""
    most = 0
    for version, path in groups("\n".join(node_files.attempt_lines(f"/proc/{pid}/cgroup"))):
        job = _JOB.search(path)
        for group in {path, path[: job.end()] if job else path}:
            for root in _ROOTS[version]:
                match = _KILLS.search(attempt(f"{root}{group}/{_FILES[version]}"))
                most = max(most, int(match.group(1)) if match else 0)
    return most


def groups(text: str) -> list[tuple[int, str]]:
    """Read /proc/PID/cgroup: (version, path) of groups that account memory, without the root."""
    rows = []
    for line in text.split("\n"):
        hierarchy, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon or not path.startswith("/") or path == "/" or ".." in path:
            continue
        if hierarchy == "0" and not controllers:
            rows.append((2, path))
        elif "memory" in controllers.split(","):
            rows.append((1, path))
    return rows


_STATES = {"R": "running", "S": "sleeping", "D": "disk", "T": "stopped", "t": "traced",
           "Z": "zombie", "X": "gone", "x": "gone"}  # fmt: skip


def read(pids: dict[str, int], care: Care) -> dict[str, Document]:
    """Return a `moment` of each process, by its pid as text; `pids` has each one's start time.

    The state is "gone" for a process that has ended, also if its pid was reused. Only in a child:
    the processes may be stuck.
    """
    moments = {}
    for pid, start in pids.items():
        if not care.hides(int(pid)):
            care.mark(-int(pid))
            moments[pid] = moment(int(pid), start)
    return moments


def moment(pid: int, start: int) -> Document:
    """Return the kernel's current counters of one process."""
    stat = procfs.look(pid)
    if stat is None or stat.start != start:
        return {"state": "gone"}
    switches = procfs.status(pid).get(b"voluntary_ctxt_switches") or [b"0"]
    below = [procfs.outline(child) for child in children.children_of(pid)]
    return {
        "state": _STATES.get(stat.state, "sleeping"),
        "wait_channel": procfs.wchan(pid),
        "main_cpu_s": (procfs.look(pid, thread=pid) or stat).cpu_s,
        "switches": int(switches[0]),
        "oom_kills": oom_kills(pid),
        "dead_children": sum(child is not None and child.state == "Z" for child in below),
    }


MOST = 256
_WORD = 4
"""Bytes: port_rcv_data counts words (InfiniBand Architecture, PortCounters)."""


def look(root: str) -> dict[str, Document]:
    """Return one `PortLook` for each port under `root`/class/infiniband, by "mlx5_0/1"."""
    folder = root + "/class/infiniband"
    ports: dict[str, Document] = {}
    for device in names(folder)[:MOST]:
        for port, counts in rdma.read_counters(root, f"{folder}/{device}").items():
            name, port_folder = safe_name(f"{device}/{port}"), f"{folder}/{device}/ports/{port}"
            state = attempt(port_folder + "/state")
            words = number(port_folder + "/counters/port_rcv_data") or 0
            ports[name] = {
                "name": name,
                "up": "ACTIVE" in state if state else None,
                "received": min(words * _WORD, 2**53),
                "errors": counts,
            }
    return ports


def changes(before: dict[str, Document], after: dict[str, Document]) -> list[Document]:
    """Return a `PortLook` of the document for each port: its changes between two looks."""
    return [_change(before.get(name, now), now) for name, now in sorted(after.items())]


def _change(before: Document, now: Document) -> Document:
    errors = now["errors"].items()
    grown = {name: value - before["errors"].get(name, value) for name, value in errors}
    return {
        "name": now["name"],
        "up": now["up"],
        "received": min(2**53, max(0, now["received"] - before["received"])),
        "errors": {name: value for name, value in grown.items() if value > 0},
    }


READ_S = 3.0
_GONE = "gone"
_STATIC = (
    "pid", "parent", "job", "rank", "local_rank", "world_size", "local_world_size", "restarts",
    "master", "age_s", "uid", "visible", "gpus", "inner_pid",
)  # fmt: skip
_CURRENT = ("wait_channel", "oom_kills", "dead_children")
_MOVED = ("main_cpu_s", "switches")


class Instant:
    """One look at ranks, connections and ports."""

    def __init__(self, patience: Patience, ranks: list[Document], sysfs: str) -> None:
        pids = [rank["pid"] for rank in ranks]
        wired = guard.spawn(sockets.look, pids)
        ports = guard.spawn(look, sysfs)
        self.at = time.monotonic()
        starts = {str(rank["pid"]): rank["start"] for rank in ranks}
        moment = processes.GuardedSurvey(partial(read, starts), patience.stuck)
        answer = moment.finish(patience.within(READ_S), patience.problems)
        # A rank is not gone because its counters could not be read.
        unread = {str(rank["pid"]): {"state": _STATES.get(rank["seen"], _GONE)} for rank in ranks}
        self._moments: Document = {**unread, **(answer or {})}
        answer = patience.answer_of("connections", wired, READ_S)
        for problem in answer["problems"] if answer else []:
            patience.complain(problem)
        self._wires: dict[str, list[Document]] = answer["wires"] if answer else {}
        self._interfaces: dict[str, Document] | None = answer["ports"] if answer else None
        self._rdma: dict[str, Document] | None = patience.answer_of("RDMA ports", ports, READ_S)

    def counters_of(self, pid: int) -> Document:
        """Return the counters of a process; only its state, as it was found, if none were read."""
        return self._moments.get(str(pid)) or {"state": _GONE}

    def alive(self, pid: int) -> bool:
        """Whether the process still runs."""
        return self.counters_of(pid)["state"] not in ("zombie", _GONE)

    def row(self, rank: Document, before: Instant) -> Document:
        """Return a `RankLook` of the document as of now, without its stacks."""
        pid = rank["pid"]
        then, now = before.counters_of(pid), self.counters_of(pid)
        row = {name: rank[name] for name in _STATIC if rank.get(name) is not None}
        row.update(look_s=round(self.at - before.at, 3), state=now["state"])
        row.update({name: now[name] for name in _CURRENT if name in now})
        for name in _MOVED:
            if then.get(name) is not None and now.get(name) is not None:
                row[name] = max(0, round(now[name] - then[name], 3))
        row["connections"] = sockets.changes(
            before._wires.get(str(pid), []), self._wires.get(str(pid), [])
        )
        return row

    def ports(self, before: Instant) -> list[Document] | None:
        """Return the `PortLook`s of both kinds; None where neither could be read twice."""
        pairs = ((before._interfaces, self._interfaces), (before._rdma, self._rdma))
        read = [(then, now) for then, now in pairs if then is not None and now is not None]
        if not read:
            return None
        return [port for then, now in read for port in changes(then, now)][:512]


MOST_PIDS = 256


def read_gpu_look(at: float) -> Document:
    """Return `gpus` and `problems` at the time `at` (monotonic); only in a child.

    `gpus` is None without a driver, or if it fails. NVML starts before `at`.
    """
    try:
        pynvml = load()
        try:
            pynvml.nvmlInit()
            time.sleep(max(0.0, at - time.monotonic()))
            nvml = Nvml(pynvml)
            gpus = [_gpu(nvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            raise NoDriver("error", clean(str(error))) from None
    except NoDriver as none:
        return {"gpus": None, "problems": [f"GPUs: {none}"] if none.state == "error" else []}
    return {"gpus": [gpu for gpu in gpus if gpu], "problems": nvml.problems}


def _gpu(nvml: Nvml, index: int) -> Document | None:
    nvml.subject = f"GPU {index}"
    handle = nvml.ask(nvml.lib.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return None
    memory = nvml.ask_by_name("nvmlDeviceGetMemoryInfo", handle)
    rates = nvml.ask_by_name("nvmlDeviceGetUtilizationRates", handle)
    bits = nvml.ask_by_name(nvml.reasons_call(), handle)
    sm = nvml.lib.NVML_CLOCK_SM
    return {
        "index": index,
        "uuid": nvml.text(nvml.lib.nvmlDeviceGetUUID, handle),
        "busy_percent": rates.gpu if rates is not None and rates.gpu in range(101) else None,
        "clock_mhz": nvml.ask_by_name("nvmlDeviceGetClockInfo", handle, sm),
        "memory_used_mib": memory and memory.used // MIB,
        "throttled": [name for name in reasons(int(bits or 0)) if name != "idle"],
        "pids": _pids(nvml, handle),
    }


def _pids(nvml: Nvml, handle: Any) -> list[int]:
    rows = nvml.ask_by_name("nvmlDeviceGetComputeRunningProcesses", handle) or []
    return sorted({process.pid for process in rows if 0 <= process.pid < 1 << 31})[:MOST_PIDS]
