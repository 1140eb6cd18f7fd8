"""Finds what uses a node's GPUs: running jobs, and what earlier jobs left behind.

Pure rules over the probe's list. `grave` findings make the node not ready; the others are
warnings. A process of a running job is never stale, however much it holds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Final

from msgspec import Struct

from preflight.core.files import shipped_table
from preflight.core.text import age, count, memory
from preflight.core.thresholds import SHIPPED, Thresholds
from preflight.facts.model import Facts, Gpu, Process, Processes

_PROGRAMS: Final = shipped_table(__file__, "gpu_users.toml")
_REAPERS: Final = re.compile("|".join(_PROGRAMS["reapers"]))
_LAUNCHER: Final = re.compile("|".join(_PROGRAMS["launchers"]))
_CUT_AT: Final = (9, 15)
"""lsof and the kernel cut names to this many characters."""


def program(command: str) -> str:
    """The program in a command line: "python3" of "/usr/bin/python3 train.py"."""
    first = command.strip("[]").split(maxsplit=1)[:1]
    return PurePath("".join(first).rstrip(":")).name


_MOST_OF_A_DAEMON_MIB: Final = 4096
"""Chosen: a desktop with several large screens takes 1 to 2 GiB."""


def is_daemon(proc: Process) -> bool:
    """Whether a process is a driver daemon, monitor or desktop, which belongs to no job.

    A user can give any process such a name, so more than a daemon's memory counts as a job's.
    """
    if proc.user != "root" and (proc.gpu_mib or 0) > _MOST_OF_A_DAEMON_MIB:
        return False
    name = program(proc.command)
    is_cut = len(name) in _CUT_AT
    return any(
        name == daemon or (is_cut and daemon.startswith(name)) for daemon in _PROGRAMS["daemons"]
    )


def is_orphan(proc: Process, others: Collection[Process]) -> bool:
    """Whether the launcher that started a rank is gone. `others`: the other known processes.

    A child of a rank (a data loader, a wrapper) is no orphan.
    """
    if _LAUNCHER.search(proc.parent_command):
        return False
    if any(other.pid == proc.ppid and other.rank is not None for other in others):
        return False
    return proc.ppid <= 1 or bool(_REAPERS.fullmatch(program(proc.parent_command)))


def holds_memory(proc: Process) -> bool:
    """Whether NVML charges GPU memory to it."""
    return bool(proc.gpu_mib)


GRANT: Final = "let the probe see other users' processes: run it as root or give it CAP_SYS_PTRACE"
_MOST_CHARS: Final = 60
"""Of a command line in a sentence."""
_KTHREADD: Final = 2
_DRIVER_WAIT_CHANNELS: Final = ("nv", "_nv", "uvm", "os_acquire", "rm_")


class Stale(Struct, frozen=True):
    """One leftover of an earlier job, and the command that removes it."""

    sentence: str
    advice: str
    culprits: tuple[Process, ...] = ()
    grave: bool = True
    grant: str = ""


def find_stale(processes: Processes, gpus: Sequence[Gpu], limit: Thresholds) -> list[Stale]:
    """Everything that earlier jobs left, the grave first; each process is named once."""
    notable = [proc for proc in processes.notable if not proc.ours]
    leftovers: list[Stale] = [
        *_stuck_processes(notable, limit),
        *_zombies(notable, limit),
        *_orphans(notable),
    ]
    reported = {proc.pid for stale in leftovers for proc in stale.culprits}
    rest = [proc for proc in notable if proc.pid not in reported and proc.state != "Z"]
    leftovers += _jobless(rest, processes.scheduler, with_nvml=bool(gpus))
    reported |= {proc.pid for stale in leftovers for proc in stale.culprits}
    leftovers += _ownerless_memory(processes, gpus, reported, limit)
    return sorted(leftovers, key=lambda stale: not stale.grave)


def _zombies(notable: Sequence[Process], limit: Thresholds) -> Iterator[Stale]:
    zombies = [proc for proc in notable if proc.state == "Z"]
    # Surely left over: its torchrun is gone, or its job has ended.
    left_over = {
        proc.pid
        for proc in notable
        if (proc.rank is not None and is_orphan(proc, notable)) or proc.job_alive is False
    }
    for proc in zombies:
        end = f"it disappears when its parent ends, pid {proc.ppid}: leave that to its owner"
        if proc.ppid in left_over - {0, 1}:
            end = f"end its parent, which is left over: kill {proc.ppid}"
        if proc.threads or proc.holds_gpu or holds_memory(proc):
            why = f"has {proc.threads} live threads" if proc.threads else "still holds a GPU"
            advice = f"{end}; if it stays, it is stuck in the driver: drain and reboot"
            yield Stale(f"zombie {name_process(proc)} {why}", advice, (proc,))
        elif proc.ppid > 1 and proc.age_s > limit("zombie_age_s"):
            name = f" ({proc.parent_command[:_MOST_CHARS]})" if proc.parent_command else ""
            sentence = f"zombie {name_process(proc)}: its parent {proc.ppid}{name} never reaped it"
            yield Stale(sentence, f"harmless but untidy; {end}", (proc,), grave=False)
        elif not proc.ppid and not proc.age_s:  # a captured listing without parents and ages
            advice = f"harmless unless it holds a GPU; find its parent: ps -o ppid= -p {proc.pid}"
            yield Stale(f"zombie {name_process(proc)}", advice, (proc,), grave=False)
    unreaped = tuple(proc for proc in zombies if proc.ppid == 1)
    if len(unreaped) >= limit("unreaped_zombies"):
        oldest = age(max(proc.age_s for proc in unreaped))
        sentence = f"{len(unreaped)} zombies that PID 1 does not reap, the oldest {oldest} old"
        advice = "start the container with an init (docker run --init), or restart it"
        yield Stale(sentence, advice, unreaped, grave=False)


def _stuck_processes(notable: Sequence[Process], limit: Thresholds) -> Iterator[Stale]:
    for proc in (proc for proc in notable if proc.state == "D"):
        where = f" in {proc.wchan}" if proc.wchan else ""
        if (proc.stuck_s or 0) >= limit("stuck_s"):
            in_driver = proc.wchan.startswith(_DRIVER_WAIT_CHANNELS)
            holds = proc.holds_gpu or holds_memory(proc)
            grave = in_driver or (holds and is_orphan(proc, notable))
            advice = "no signal ends it: look for Xid in dmesg, drain and reboot"
            if not grave:
                advice = "look at its disk or network file system (cat /proc/PID/stack as root)"
            sentence = f"{name_process(proc)} is in D state{where}"
            yield Stale(sentence, advice.replace("PID", str(proc.pid)), (proc,), grave=grave)
        elif proc.stuck_s == 0 and not _is_kernel_thread(proc):
            # A disk may have been slow, or the driver hangs.
            advice = "run ps again; if it is still in D state, look for Xid in dmesg and reboot"
            sentence = f"{name_process(proc)} is in D state{where} in the only sample"
            yield Stale(sentence, advice, (proc,), grave=False)


def _is_kernel_thread(proc: Process) -> bool:
    """Whether a process is a kernel thread, which often waits for disks."""
    return proc.ppid == _KTHREADD or proc.command.startswith("[")


def _orphans(notable: Sequence[Process]) -> Iterator[Stale]:
    runs: dict[tuple[str, str], list[Process]] = {}
    for proc in notable:
        rank = proc.rank
        if rank and rank.elastic_run_id and proc.state not in "DZ" and is_orphan(proc, notable):
            runs.setdefault((rank.elastic_run_id, rank.master_port), []).append(proc)
    for (run_id, _), ranks in runs.items():
        if len(ranks) == 1:
            sentence = f"{name_process(ranks[0])} is a rank whose torchrun is gone"
        else:
            pids = ", ".join(str(proc.pid) for proc in ranks)
            oldest = age(max(proc.age_s for proc in ranks))
            sentence = f"{len(ranks)} ranks of run {run_id!r} whose torchrun is gone"
            sentence += f" (pids {pids}, user {ranks[0].user}, started {oldest} ago)"
        advice = kill_command(proc.pid for proc in ranks)
        yield Stale(sentence + _holdings(ranks), advice, tuple(ranks))


def _jobless(processes: Iterable[Process], scheduler: str, *, with_nvml: bool) -> Iterator[Stale]:
    """Processes that use a GPU without a running job; only a warning without a scheduler.

    Without NVML, any process that has a GPU open may have memory on it.
    """
    for proc in processes:
        if is_daemon(proc) or not (proc.holds_gpu or holds_memory(proc)):
            continue
        if scheduler == "slurm" and proc.job_alive is not True:
            ended = f"of job {proc.job}, which has ended" if proc.job else "outside any job"
            if proc.job and proc.job_alive is None:
                continue
            sentence = f"{name_process(proc)} {ended}{_holdings([proc]) or ', has a GPU open'}"
            advice, grave = kill_command([proc.pid]), holds_memory(proc)
            # Without memory on it, it may be a monitor that is not known here.
            advice = advice if grave or proc.job else f"if it is not needed: {advice}"
            yield Stale(sentence, advice, (proc,), grave=grave)
        elif scheduler != "slurm" and (holds_memory(proc) or not with_nvml) and proc.rank is None:
            sentence = f"{name_process(proc)} uses a GPU{_holdings([proc])}"
            advice = f"if it is not needed: {kill_command([proc.pid])}"
            yield Stale(sentence, advice, (proc,), grave=False)


def _ownerless_memory(
    processes: Processes, gpus: Sequence[Gpu], reported: Collection[int], limit: Thresholds
) -> Iterator[Stale]:
    """GPU memory that no process in NVML's list accounts for: another namespace, a dead context.

    Where NVML hides charges, a process that has a GPU open may own it: then a running job, or a
    process already reported, accounts for it.
    """
    unowned = {gpu.index: mib for gpu in gpus if (mib := _unowned_mib(gpu, limit))}
    openers = [proc for proc in processes.notable if proc.holds_gpu and proc.gpu_mib is None]
    busy = (proc.ours or proc.pid in reported or proc.rank or proc.job_alive for proc in openers)
    if not unowned or any(busy):
        return
    listed = ", ".join(f"GPU{index} {memory(mib)}" for index, mib in unowned.items())
    suspects = [proc for proc in openers if not is_daemon(proc)]
    if suspects:
        names = ", ".join(name_process(proc) for proc in suspects)
        advice = f"ask its owner, then: {kill_command(proc.pid for proc in suspects)}"
        yield Stale(f"{listed} in use; open by {names}", advice, tuple(suspects))
        return
    advice = "on the host: fuser -v /dev/nvidia*; end the processes it lists, or reset the idle GPU"
    hidden = count(processes.unreadable, "process", "processes")
    note = f" ({hidden} not readable)" if processes.unreadable else ""
    grant = GRANT if processes.unreadable else ""
    yield Stale(f"{listed} in use by no visible process{note}", advice, grant=grant)


def _unowned_mib(gpu: Gpu, limit: Thresholds) -> int:
    """MiB in use that no process is charged for; 0 below the limit or if a charge is hidden."""
    charges = [charge.used_mib for charge in gpu.processes or ()]
    if gpu.memory_used_mib is None or gpu.processes is None or gpu.mig_enabled or None in charges:
        return 0
    unowned = gpu.memory_used_mib - sum(charge or 0 for charge in charges)
    return unowned if unowned > limit("unowned_gpu_memory_mib") else 0


def _holdings(ranks: Sequence[Process]) -> str:
    """What they hold that the next job needs: ", holds 38.5 GiB of GPU memory and port 29500"."""
    mib = sum(proc.gpu_mib or 0 for proc in ranks)
    ports = sorted({port for proc in ranks for port in proc.listens})
    parts = [f"{memory(mib)} of GPU memory"] if mib else []
    parts += [f"port {', '.join(str(port) for port in ports)}"] if ports else []
    return f", {'holds' if len(ranks) == 1 else 'hold'} {' and '.join(parts)}" if parts else ""


BUSY_PREFIX = "busy: "
"""Prefix of the reason in a sweep's `left_out` for a node that a job uses."""


def busy_process(facts: Facts) -> str:
    """Name the process of a running job that uses a GPU here; "" if there is none.

    Leftovers of ended jobs and the driver's daemons do not count.
    """
    if facts.processes is None:
        return ""
    stale = {
        proc.pid
        for leftover in find_stale(facts.processes, facts.gpus or (), limit=SHIPPED)
        for proc in leftover.culprits
        if leftover.grave
    }
    for proc in facts.processes.notable:
        uses = proc.holds_gpu or holds_memory(proc)
        if uses and not proc.ours and proc.pid not in stale and not is_daemon(proc):
            return name_process(proc)
    return ""


def name_process(proc: Process) -> str:
    """Pid, program, user and age: pid 42 (python train.py, user alice, started 14 min ago)."""
    command = proc.command if len(proc.command) <= _MOST_CHARS else proc.command[:57] + "..."
    details = [command, f"user {proc.user}" if proc.user else ""]
    if proc.pid:
        started = f"started {age(proc.age_s)} ago" if proc.age_s else ""
        return f"pid {proc.pid} ({', '.join(filter(None, [*details, started]))})"
    hidden = "a process that this login may not see"
    return f"{hidden} (user {proc.user})" if proc.user else hidden


def kill_command(pids: Iterable[int]) -> str:
    """The command that ends processes: SIGTERM first."""
    listed = " ".join(str(pid) for pid in sorted(pids) if pid > 1)
    return f"kill {listed}; if still there after 10 s: kill -9 {listed}"
