"""Reads the machine around the GPUs, in children: limits, memory, file systems, load."""

from __future__ import annotations

import os
import re
import resource
import time
from contextlib import suppress
from functools import partial
from typing import Any, Callable, Iterable

from . import file_systems, guard, node_files, procfs
from .node_files import (
    MIB,
    attempt,
    attempt_lines,
    clean,
    lines,
    number,
    numbered,
    parse_key_values,
    whole,
    words,
)
from .processes import Care, GuardedSurvey, ancestors
from .procfs import TICKS, Users


def read_cgroup(mounts: list[node_files.Mount]) -> dict[str, Any]:
    """Return `Cgroup`: the lowest limits of our group and of those above it."""
    cpus, memory, pids = [], [], []
    for folder in _folders(lines("/proc/self/cgroup"), mounts):
        quota_v1 = [attempt(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period")]
        cpus.append(quota(attempt(f"{folder}/cpu.max") or " ".join(quota_v1)))
        memory += [number(f"{folder}/{name}") for name in ("memory.max", "memory.limit_in_bytes")]
        pids.append(number(f"{folder}/pids.max"))
    # cgroup v1 writes "no limit" as the largest number of pages.
    lowest = _lowest(limit for limit in memory if limit != node_files.MOST)
    memory_mib = None if lowest is None else int(lowest) // MIB
    return {"cpus": _lowest(cpus), "memory_mib": memory_mib, "pids": _lowest(pids)}


def _folders(own: list[str], mounts: list[node_files.Mount]) -> list[str]:
    """Return the folders of our groups and of all above them, for both versions."""
    folders: list[str] = []
    for line in own:
        _, _, fields = line.partition(":")
        controllers, _, path = fields.partition(":")
        for mount in mounts:
            if mount.kind == ("cgroup" if controllers else "cgroup2") and (
                not controllers or set(controllers.split(",")) & set(mount.super_options)
            ):
                folders += _groups_above(mount, path)
                break
    return folders


def _groups_above(mount: node_files.Mount, path: str) -> list[str]:
    """Our group in this mount, and those above it that the mount shows."""
    descendants = path[len(mount.root) :] if path.startswith(mount.root.rstrip("/") + "/") else path
    parts = [part for part in descendants.split("/") if part and part != ".."]
    folders = [
        "/".join([mount.point.rstrip("/"), *parts[:depth]]) for depth in range(len(parts) + 1)
    ]
    return [folder for folder in folders if os.path.isdir(folder)]


def quota(text: str) -> float | None:
    """Read quota and period, "200000 100000": CPUs; None for no limit ("max 100000", or -1)."""
    time_us, _, period_us = text.partition(" ")
    try:
        cpus = round(int(time_us) / int(period_us), 3)
    except (ValueError, ZeroDivisionError):
        return None
    return cpus if cpus > 0 else None


def _lowest(values: Iterable[Any]) -> Any:
    return min((value for value in values if value is not None), default=None)


_FIRST_PROCESS_TABLE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel: the machine's own, on every machine."""

_FILES = {
    "/var/run/secrets/kubernetes.io": "kubernetes",
    "/.dockerenv": "docker",
    "/run/.containerenv": "podman",
    "/.singularity.d": "apptainer",
}
_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "apptainer",
}
_INITS = ("init", "systemd")
_HIDE_PID = {"hidepid=2", "hidepid=4", "hidepid=invisible", "hidepid=ptraceable"}
_GROUPS = r"/(kubepods|docker|libpod|lxc)\b"
_NAMES = {"kubepods": "kubernetes", "libpod": "podman"}


def _what_hides(mounts: list[node_files.Mount]) -> str | None:
    """Return what hides other users' processes from us; "" for nothing, None if not known.

    A container with its own init counts as a machine: nothing is hidden there.
    """
    proc = node_files.mount_of("/proc", mounts)
    if proc is not None and os.geteuid() and _HIDE_PID.intersection(proc.super_options):
        return "hidepid"
    table = procfs.link("self", "ns/pid")
    if not table:
        return None
    whole_machine = table == _FIRST_PROCESS_TABLE or attempt("/proc/1/comm") in _INITS
    return "" if whole_machine else "process table"


def _kind() -> str:
    kinds = [kind for variable, kind in _VARIABLES.items() if variable in os.environ]
    kinds += [kind for path, kind in _FILES.items() if os.path.exists(path)]
    groups = re.findall(_GROUPS, "\n".join(attempt_lines("/proc/1/cgroup")))
    kinds += [_NAMES.get(group, group) for group in groups]
    return kinds[0] if kinds else attempt("/run/systemd/container")


def is_clock_kept() -> bool | None:
    """Whether the kernel reports a synchronized clock; None where this login may not ask."""
    import ctypes

    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    return None if state < 0 else state != _TIME_ERROR


_TIME_ERROR = 5
"""adjtimex(2): the clock is not synchronized."""


UNLIMITED = -1

_LAUNCHERS = {b"slurmd": "slurmd", b"pbs_mom": "pbs_mom"}
"""Daemons that start jobs; sshd is not one of them."""

_LARGEST_LIMIT = 1 << 62
"""The most that the document can hold; no machine has as much."""

_IPC_LOCK = 14
"""CAP_IPC_LOCK of capabilities(7): no limit on locked memory."""

_ALL_IDS = ["0", "0", "4294967295"]
"""The uid_map of the machine's own user namespace; in another one, CAP_IPC_LOCK has no effect."""


def own_limits() -> dict[str, int]:
    """Return `Limits` of this process."""
    kinds = (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE)
    return _limits([limit for kind in kinds for limit in resource.getrlimit(kind)])


def may_lock_any() -> bool:
    """Whether this process may lock memory beyond its limit."""
    all_ids = lines("/proc/self/uid_map")[0].split() == _ALL_IDS
    return all_ids and procfs.has_capability(_IPC_LOCK)


def launchers(look: Look) -> list[dict[str, Any]]:
    """Return every scheduler's daemon of this node with its limits."""
    daemons = []
    for pid, stat in look.stats.items():
        name = _LAUNCHERS.get(stat.comm, "")
        if name and procfs.is_daemon(pid, name):
            limits = parse(attempt_lines(f"/proc/{pid}/limits"))
            if limits is not None:
                daemons.append({"name": name, "pid": pid, "limits": limits})
    return daemons[:8]


def parse(rows: list[str]) -> dict[str, int] | None:
    """Read /proc/PID/limits; None where a limit that we need is missing."""
    words = {
        name: line[len(name) :].split()[:2]
        for line in rows
        for name in ("Max locked memory", "Max open files")
        if line.startswith(name)
    }
    try:
        limits = [*words["Max locked memory"], *words["Max open files"]]
        return _limits([UNLIMITED if limit == "unlimited" else int(limit) for limit in limits])
    except (LookupError, ValueError):
        return None


def _limits(values: list[int]) -> dict[str, int]:
    names = ("memlock", "memlock_hard", "nofile", "nofile_hard")
    return {name: min(limit, _LARGEST_LIMIT) for name, limit in zip(names, values)}  # noqa: B905 (Python 3.8)


MOST = 3
"""Processes named."""

_LOGIN_PROGRAMS = (
    b"systemd", b"init", b"sshd", b"sshd-session", b"slurmstepd", b"slurmd", b"cron", b"crond",
)  # fmt: skip
"""Programs that start a login or a job: other children of theirs are not ours."""


class Look:
    """The CPU time that every process has used so far, without kernel threads."""

    def __init__(self, care: Care, among: Iterable[int] | None = None) -> None:
        self.at_s = time.monotonic()
        stats = care.everyone(among).items()
        self.stats = {pid: stat for pid, stat in stats if not stat.kernel}


def read_load(before: Look, run_pid: int, care: Care) -> dict[str, Any]:
    """Return `Load` since that look, without what belongs to this run or its login."""
    after = Look(care, before.stats)  # without processes that started in between
    seconds = max(time.monotonic() - before.at_s, 1 / TICKS)
    own_pids = _own_pids(run_pid, before.stats)
    shares = []
    for pid, now in after.stats.items():
        then = before.stats[pid]
        if pid not in own_pids and then.start == now.start and now.cpu_s > then.cpu_s:
            shares.append(((now.cpu_s - then.cpu_s) / seconds, pid))
    return {
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "one_minute": float(lines("/proc/loadavg")[0].split()[0]),
        "foreign_cpus": round(sum(share for share, _ in shares), 2),
        "busiest": [_worker(pid, share, after) for share, pid in sorted(shares)[: -MOST - 1 : -1]],
    }


def _worker(pid: int, share: float, look: Look) -> dict[str, Any]:
    users = Users(patient=False)
    try:
        user = users.name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        user = "?"
    return {
        "pid": pid,
        "name": clean(look.stats[pid].comm),
        "user": clean(user),
        "cpus": round(share, 2),
    }


def _own_pids(run_pid: int, everyone: dict[int, procfs.Stat]) -> set[int]:
    """The pids of this run: up to the login or job that started it, and all below that."""
    top = run_pid
    for pid in ancestors(run_pid):
        if pid in everyone and everyone[pid].comm in _LOGIN_PROGRAMS:
            break
        top = pid
    return {top, *procfs.descendants(top, everyone), *ancestors(run_pid)}


_KIB = 1024
_SOME_PRESSURE = r"^some avg10=([\d.]+)"


def parse_memory(meminfo: list[str], pressure: list[str]) -> dict[str, Any]:
    """Return `Memory` by /proc/meminfo and /proc/pressure/memory; LookupError or ValueError."""
    values = {name: value.split() for name, value in parse_key_values(meminfo).items()}

    def mib(name: str) -> int:
        return int(values[name][0]) // _KIB if name in values else 0

    stalled = re.match(_SOME_PRESSURE, pressure[0]) if pressure else None
    return {
        "total_mib": int(values["MemTotal"][0]) // _KIB,
        "available_mib": int(values["MemAvailable"][0]) // _KIB,
        "swap_used_mib": max(0, mib("SwapTotal") - mib("SwapFree")),
        "shared_mib": mib("Shmem"),
        "huge_pages_mib": int(values.get("HugePages_Total", ["0"])[0]) * mib("Hugepagesize"),
        "stalled_percent": min(100.0, float(stalled.group(1))) if stalled else None,
    }


def edac(root: str) -> dict[str, Any]:
    """Return `Edac`; OSError or ValueError where a counter that is there cannot be read."""
    folder = root + "/devices/system/edac/mc"
    rows: list[dict[str, Any]] = []
    watched = 0
    for controller in numbered(folder, r"mc\d+"):
        dimms = _dimms(f"{folder}/{controller}", controller)
        watched += len(dimms)
        rows += [*dimms, _without_dimm(f"{folder}/{controller}", controller, dimms)]
    errors = [row for row in rows if row["corrected"] or row["uncorrected"]]
    errors.sort(key=lambda row: (-row["uncorrected"], -row["corrected"]))
    return {"watched": watched, "errors": errors[:256]}


def _dimms(folder: str, controller: str) -> list[dict[str, Any]]:
    counted_s = number(folder + "/seconds_since_reset")
    return [
        {
            "name": attempt(f"{folder}/{dimm}/dimm_label") or clean(f"{controller}/{dimm}"),
            "corrected": whole(f"{folder}/{dimm}/dimm_ce_count"),
            "uncorrected": whole(f"{folder}/{dimm}/dimm_ue_count"),
            "counted_s": counted_s,
        }
        for dimm in numbered(folder, r"(?:dimm|rank)\d+")
    ]


def _without_dimm(folder: str, controller: str, dimms: list[dict[str, Any]]) -> dict[str, Any]:
    """The controller's errors beyond its DIMMs': old drivers only know rows, or no location."""
    counted_s = number(folder + "/seconds_since_reset")
    row = {"name": clean(f"{controller}, no DIMM named"), "counted_s": counted_s}
    for kind, name in (("corrected", "ce"), ("uncorrected", "ue")):
        unlocated = whole(f"{folder}/{name}_count") - sum(dimm[kind] for dimm in dimms)
        row[kind] = max(0, unlocated)
    return row


_ENOUGH = 4096
"""Bytes of /proc/cpuinfo with the first CPU: reading all of it takes long on a large machine."""


def read_stack(root: str) -> dict[str, Any]:
    """Return `Stack`; "" or 0 for what is not known."""
    online = node_files.attempt_raw(root + "/devices/system/cpu/online")
    return {
        "os": system(attempt_lines("/etc/os-release")),
        "libc": _libc(),
        "architecture": clean(os.uname().machine),
        "cpu": cpu(lines("/proc/cpuinfo", _ENOUGH)),
        "cpus_online": len(node_files.cpus_in(online.decode("ascii"))),
        "product": attempt(root + "/class/dmi/id/product_name"),
        "bios": attempt(root + "/class/dmi/id/bios_version"),
    }


def serial(root: str) -> str | None:
    """Return the machine's serial number; None where there is none, or only root may read it."""
    names = ("product_serial", "board_serial")
    return next(filter(None, (attempt(f"{root}/class/dmi/id/{name}") for name in names)), None)


def system(rows: list[str]) -> str:
    """Return PRETTY_NAME of os-release(5); "" without one."""
    for line in rows:
        name, _, value = line.partition("=")
        if name.strip() == "PRETTY_NAME":
            return clean(value.strip().strip("\"'"))
    return ""


def cpu(rows: list[str]) -> str:
    """Return the CPU's model: its name on x86, implementer and part on Arm."""
    fields = parse_key_values(rows)
    if "model name" in fields:
        return clean(fields["model name"])
    parts = [name for name in ("CPU implementer", "CPU part") if name in fields]
    return clean(" ".join(f"{name[4:]} {fields[name]}" for name in parts))


def _libc() -> str:
    with suppress(ValueError, OSError):  # musl knows no such name
        return clean(os.confstr("CS_GNU_LIBC_VERSION") or "")
    return ""


def governors(root: str) -> list[dict[str, Any]]:
    """Return every `Governor`; [] where the kernel does not control frequencies."""
    folder = root + "/devices/system/cpu/cpufreq"
    totals: dict[tuple[str, str], int] = {}
    for policy in (f"{folder}/{name}" for name in numbered(folder, r"policy\d+")):
        kind = attempt(policy + "/scaling_governor"), attempt(policy + "/scaling_driver")
        cpus = len(attempt(policy + "/affected_cpus").split()) or 1
        totals[kind] = totals.get(kind, 0) + cpus
    rows = sorted((*kind, total) for kind, total in totals.items())
    return [{"name": name, "driver": driver, "cpus": total} for name, driver, total in rows[:64]]


LOOK_S = 0.2
"""CPU load is measured between two looks this far apart."""


class Machine:
    """Starts all readers at once; `finish` collects their results."""

    def __init__(self, root: str, stuck: set[int]) -> None:
        self._problems: list[str] = []
        self._files: file_systems.Readers | None = None
        self._of_processes = GuardedSurvey(partial(read_processes, os.getpid()), stuck)
        self._child = guard.spawn(read, root)
        try:
            self._files = file_systems.Readers(node_files.read())
        except OSError as error:
            self._problems.append(f"file systems: {words(error)}")

    def finish(self, soon: float, until: float, problems: list[str]) -> dict[str, Any]:
        """Return the document's `Machine`; a part that could not be read is None.

        Only what other readers of processes hang at, too, may take until `until`.
        """
        soon = max(soon, guard.clock.now())
        machine: dict[str, Any] = {}
        for answer in (
            guard.answer_of("machine", self._child, soon, self._problems.append),
            self._of_processes.finish(until, problems),
        ):
            machine.update(answer["machine"] if answer else {})
            self._problems += answer["problems"] if answer else []
        machine["file_systems"] = self._files and self._files.finish(soon, self._problems)
        problems += self._problems
        return machine


def read_processes(run_pid: int, care: Care) -> dict[str, Any]:
    """Return the parts that come from other processes, and those that failed with the reason."""
    problems: list[str] = []
    before = Look(care)
    machine = {"launchers": _try_read("launchers", lambda: launchers(before), problems)}
    time.sleep(max(0.0, before.at_s + LOOK_S - time.monotonic()))
    machine["load"] = _try_read("load", lambda: read_load(before, run_pid, care), problems)
    return {"machine": machine, "problems": problems}


def read(root: str) -> dict[str, Any]:
    """Return the other parts except the file systems, and those that failed with the reason."""
    problems: list[str] = []
    parts: dict[str, Callable[[], Any]] = {
        "limits": own_limits,
        "locks_any": may_lock_any,
        "stack": lambda: read_stack(root),
        "serial": lambda: serial(root),
        "governors": lambda: governors(root),
        "memory": lambda: parse_memory(
            lines("/proc/meminfo"), attempt_lines("/proc/pressure/memory")
        ),
        "edac": lambda: edac(root),
        "cgroup": lambda: read_cgroup(node_files.read()),
        "container": lambda: {"kind": _kind(), "hidden_by": _what_hides(node_files.read())},
        "clock_kept": is_clock_kept,
    }
    machine = {name: _try_read(name, part, problems) for name, part in parts.items()}
    return {"machine": machine, "problems": problems}


def _try_read(name: str, part: Callable[[], Any], problems: list[str]) -> Any:
    try:
        return part()
    except (OSError, ValueError, LookupError, AttributeError) as error:
        problems.append(f"{name}: {words(error)}")
        return None
