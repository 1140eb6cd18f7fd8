"""Reads the node's processes, in a child: a stuck process may hang its reader, as it hangs `ps`."""

from __future__ import annotations

import itertools
import mmap
import os
import re
import struct
import time
from typing import Any, Callable, Collection, Iterable, Iterator, Mapping, TypeVar

from . import guard, procfs
from .node_files import clean
from .procfs import Stat, Users, login_name, look

_T = TypeVar("_T")


_RANK = {"master_port": b"MASTER_PORT", "elastic_run_id": b"TORCHELASTIC_RUN_ID"}
"""The only variables of an environment whose values leave a node."""

DEEPEST = 64
"""Most ancestors to follow: a loop made by reused pids must end."""


_MARK = struct.Struct("qq")
"""The process that is being read, negative for its stat line, and a count that changes."""


class Care:
    """Knows which processes must not be read like others, since that can hang.

    Reading their memory (command, environment) can hang, and while they start a program also their
    stat line: newer kernels lock it. Of a user with several such processes none is read, as each
    costs a try.
    """

    def __init__(self, stuck: Collection[int] = (), shared: mmap.mmap | None = None) -> None:
        """`stuck`: as a mark has them; `shared`: memory in which the parent sees the mark."""
        self._stuck, self._shared, self._marks = set(map(abs, stuck)), shared, 0
        self._hidden = {-pid for pid in stuck if pid < 0}
        users = [user for user in map(procfs.owner, self._stuck) if user]
        self._users = {user for user in users if users.count(user) > 1}

    def hides(self, pid: int) -> bool:
        """Whether its stat line must not be read."""
        return pid in self._hidden or bool(
            self._hidden and self._users and procfs.owner(pid) in self._users
        )

    def look(self, pid: int) -> Stat | None:
        """Return its stat, or as much of it as is known elsewhere; None if it is gone."""
        if self.hides(pid):
            return procfs.outline(pid)
        self.mark(-pid)
        return look(pid)

    def everyone(self, among: Iterable[int] | None = None) -> dict[int, Stat]:
        """Return every process of this node (or this container), or those of `among`, by pid."""
        looks = map(self.look, procfs.pids() if among is None else among)
        stats = {stat.pid: stat for stat in looks if stat}
        self.mark(0)
        return stats

    def untouchable(self, stat: Stat) -> bool:
        """Whether its memory must not be touched."""
        if stat.pid in self._stuck or (self._stuck and stat.state == "D"):
            return True
        return bool(self._users) and procfs.owner(stat.pid) in self._users

    def mark(self, pid: int) -> None:
        """Note the process that is read next, negative for its stat line; 0 for none."""
        self._marks += 1
        if self._shared is not None:
            _MARK.pack_into(self._shared, 0, pid, self._marks)

    def marking(self, entries: Iterable[_T]) -> Iterator[_T]:
        """Yield each, and note that the reading goes on: users can make many."""
        for entry in entries:
            self.mark(0)
            yield entry


class Describer:
    """Describes processes of one node, given everyone's stat line and the pid of our probe."""

    def __init__(self, everyone: Mapping[int, Stat], run_pid: int, care: Care) -> None:
        self._everyone, self._care = everyone, care
        self._users = Users(patient=True)
        self._uid = os.geteuid()
        above = ancestors(run_pid)
        self._own_pids = {run_pid, *procfs.descendants(run_pid, everyone), *above}
        self._agent = _agent(above)

    def user(self, uid: int | None) -> str:
        """Return the login name of a user id; "?" where the process is gone."""
        return "?" if uid is None else clean(self._users.name(uid))

    def describe(self, stat: Stat, environ: bytes | None) -> dict[str, Any]:
        """Return one `Process` of the document, without the fields that need a whole `Survey`."""
        uid = procfs.uid(stat.pid)
        variables = procfs.variables(environ)
        its_rank = rank(variables)
        parent = self._everyone.get(stat.ppid)
        return {
            **_stat_fields(stat, self.user(uid), self.command(stat, uid)),
            "parent_command": self.command(parent, procfs.uid(parent.pid)) if parent else "",
            "rank": its_rank,
            "job": procfs.job(stat.pid) or clean(variables.get(b"SLURM_JOB_ID", b"")),
            "ours": stat.pid in self._own_pids or bool(its_rank and stat.ppid == self._agent),
        }

    def command(self, stat: Stat, uid: int | None) -> str:
        """Return its command without secrets; [name] if it has none or must not be read."""
        if stat.kernel or stat.state in "ZX" or self._care.untouchable(stat):
            return bracketed_name(stat)
        self._care.mark(stat.pid)
        argv = procfs.argv(stat.pid)
        if not argv:
            return bracketed_name(stat)
        from . import redact  # its patterns take milliseconds, and most nodes do not need them

        return redact.command(argv, whole=uid == self._uid)


def _agent(pids: list[int]) -> int | None:
    """Return our launcher if we are a rank (torchrun -m pytest): its other ranks are ours, too.

    It is the first ancestor that is no rank itself, when the ones below it are.
    """
    if rank(os.environb) is None:
        return None
    for pid in pids:
        if rank(procfs.variables(procfs.environ(pid))) is None:
            return pid
    return None


def bracketed_name(stat: Stat) -> str:
    """Return a process's name without reading its memory, which can hang."""
    return f"[{clean(stat.comm)}]"


def rank(environ: Mapping[bytes, bytes]) -> dict[str, str] | None:
    """Return the distributed job that its environment names; None where it is no rank."""
    if not (
        b"LOCAL_RANK" in environ
        or b"TORCHELASTIC_RUN_ID" in environ
        or (b"RANK" in environ and b"WORLD_SIZE" in environ)
    ):
        return None
    return {name: clean(environ.get(variable, b"")) for name, variable in _RANK.items()}


def ancestors(pid: int) -> list[int]:
    """Return the pids of the ancestors, without init."""
    pids: list[int] = []
    stat = look(pid)
    while stat and stat.ppid > 1 and len(pids) < DEEPEST:
        pids.append(stat.ppid)
        stat = look(stat.ppid)
    return pids


MOST = 512
"""Most processes in the document."""

LOOK_AGAIN_S = 0.2
"""D state and zombies are only reported if they last this long."""

LOOK_STEP_S = 0.02
"""Interval of looks in that time: most zombies are reaped soon, and the wait can end."""

MOST_ENVIRONS = 16 << 20
"""Most bytes of all environments of a user: he can make them arbitrarily long."""

MOST_SOCKETS = 1 << 16
"""Most lines of /proc/net/tcp; those that listen come first. A user may have 1,000,000."""

_RANK_HINTS = b"RANK=", b"TORCHELASTIC_RUN_ID="
_STEP = re.compile(rb"slurmstepd: \[(\d+)\D")


class Allowances:
    """Reads environments and open files, of each user only so much: one must not hide another's."""

    def __init__(self) -> None:
        self._users: dict[int, int | None] = {}
        self._bytes_left: dict[int | None, int] = {}
        self._files_left: dict[int | None, int] = {}

    def user(self, pid: int) -> int | None:
        """Return the user who answers for a process."""
        if pid not in self._users:
            self._users[pid] = procfs.owner(pid)
        return self._users[pid]

    def environ(self, pid: int) -> bytes | None:
        """Return its raw environment; None if hidden, or where its user's share is used up."""
        user = self.user(pid)
        bytes_left = self._bytes_left.get(user, MOST_ENVIRONS)
        environ = procfs.environ(pid) if bytes_left > 0 else None
        self._bytes_left[user] = bytes_left - len(environ or b"")
        return environ

    def open_files(self, pid: int) -> procfs.OpenFiles | None:
        """Return what it has open; None as for the environment."""
        user = self.user(pid)
        files_left = self._files_left.get(user, procfs.MOST_FILES)
        opened = procfs.open_files(pid, files_left) if files_left > 0 else None
        self._files_left[user] = files_left - (opened.count if opened else 0)
        return opened

    def in_turn(self, pids: Iterable[int]) -> list[int]:
        """Return them so that the first of each user come first, then each one's second."""
        return in_turn(((self.user(pid), 0, pid) for pid in pids))


def in_turn(rows: Iterable[tuple[object, int, _T]]) -> list[_T]:
    """Order rows (user, size, entry): each user's smallest entry, then each user's next one."""
    turns: dict[object, int] = {}
    placed = []
    for place, (user, size, entry) in sorted(enumerate(rows), key=lambda row: (row[1][1], row[0])):
        turns[user] = turns.get(user, 0) + 1
        placed.append((turns[user], size, place, entry))
    return [entry for *_, entry in sorted(placed, key=lambda row: row[:3])]


class Survey:
    """One pass over all processes."""

    def __init__(self, run_pid: int, gpu_mib: Mapping[int, int | None], care: Care) -> None:
        self._run_pid, self._gpu_mib, self._care = run_pid, gpu_mib, care
        self._everyone = care.everyone()
        self._ranks: dict[int, bytes] = {}
        self._holders = {pid for pid in gpu_mib if pid in self._everyone}
        self._opened: dict[int, procfs.OpenFiles | None] = {}
        self._unreadable, self._allowances = 0, Allowances()
        self._describer = Describer(self._everyone, run_pid, care)

    def run(self) -> dict[str, Any]:
        """Return the document's `Processes`, and `dropped`: how many notable ones did not fit."""
        gpus = any(name[:6] == "nvidia" and name[6:].isdigit() for name in os.listdir("/dev"))
        for stat in self._everyone.values():
            if not stat.kernel and stat.state not in "ZX":
                self._read(stat, gpus=gpus)
        persistent, apart_s = self._persistent()
        pids = sorted(self._ranks.keys() | self._holders | persistent, key=self._rating)
        running = self._running_jobs()
        sockets = self._care.marking(itertools.islice(procfs.tcp(), MOST_SOCKETS if pids else 0))
        ports = {row.inode: row.port for row in sockets if row.state == procfs.LISTEN}
        notable = []
        for pid in self._chosen(pids):
            process = self._describe(self._everyone[pid], running, ports)
            process["stuck_s"] = apart_s if process["state"] == "D" and pid in persistent else None
            notable.append(process)
        return {
            "seen": len(self._everyone),
            "unreadable": self._unreadable,
            "notable": notable,
            "scheduler": "none" if running is None else "slurm",
            "dropped": len(pids) - len(notable),
        }

    def _read(self, stat: Stat, *, gpus: bool) -> None:
        pid, environ = stat.pid, None
        if not self._care.untouchable(stat):
            self._care.mark(pid)
            environ = self._allowances.environ(pid)
        opened = self._open_files(pid) if gpus else None
        hidden = environ is None or (gpus and opened is None)
        self._unreadable += hidden and os.path.exists(f"/proc/{pid}")
        hinted = environ and any(hint in environ for hint in _RANK_HINTS)
        if environ and hinted and rank(procfs.variables(environ)):
            self._ranks[pid] = environ
        if opened and opened.gpu:
            self._holders.add(pid)

    def _persistent(self) -> tuple[set[int], float]:
        """Return the pids in zombie or D state at every look, and the seconds between them."""
        suspects = [
            stat
            for stat in self._everyone.values()
            if stat.state in "DZ" and stat.ppid != self._run_pid  # our own we reap in a moment
        ]
        if not suspects:
            return set(), 0.0
        began = time.monotonic()
        until = began + LOOK_AGAIN_S
        while suspects and time.monotonic() < until:
            time.sleep(LOOK_STEP_S)
            suspects = [stat for stat in suspects if self._lasts(stat)]
        self._care.mark(0)
        return {stat.pid for stat in suspects}, round(time.monotonic() - began, 3)

    def _lasts(self, stat: Stat) -> bool:
        latest = self._care.look(stat.pid)
        return latest is not None and latest.start == stat.start and latest.state == stat.state

    def _open_files(self, pid: int) -> procfs.OpenFiles | None:
        if pid not in self._opened:
            self._opened[pid] = self._allowances.open_files(pid)
        return self._opened[pid]

    def _chosen(self, pids: list[int]) -> list[int]:
        """Return those that fit: each user's in turn, zombies only where others leave room."""
        if len(pids) <= MOST:
            return pids
        zombies = [pid for pid in pids if self._everyone[pid].state == "Z"]
        live = pids[: len(pids) - len(zombies)]
        marking = self._care.marking
        order = self._allowances.in_turn(marking(live)) + self._allowances.in_turn(marking(zombies))
        return sorted(order[:MOST], key=self._rating)

    def _rating(self, pid: int) -> tuple[bool, bool, int]:
        """Sort key: zombies come last, as not all may fit."""
        return self._everyone[pid].state == "Z", pid not in self._holders, pid

    def _running_jobs(self) -> set[str] | None:
        """Return the Slurm jobs that have a step daemon here; None without Slurm."""
        daemons = [
            daemon
            for daemon in self._everyone.values()
            if daemon.comm in (b"slurmd", b"slurmstepd")
            and procfs.is_daemon(daemon.pid, daemon.comm.decode("ascii"))
        ]
        if not daemons:
            return None
        titles = (
            b" ".join(procfs.argv(stat.pid)) for stat in daemons if not self._care.untouchable(stat)
        )
        return {match.group(1).decode("ascii") for match in map(_STEP.search, titles) if match}

    def _describe(
        self, stat: Stat, running: set[str] | None, ports: Mapping[str, int]
    ) -> dict[str, Any]:
        process = self._describer.describe(stat, self._ranks.get(stat.pid))
        opened = self._open_files(stat.pid)
        listens = {ports[inode] for inode in opened.sockets if inode in ports} if opened else ()
        job = process["job"]
        is_waiting = stat.state == "D" and not self._care.hides(stat.pid)
        process["wchan"] = procfs.wchan(stat.pid) if is_waiting else ""
        process["job_alive"] = job in running if job and running is not None else None
        process["gpu_mib"] = self._gpu_mib.get(stat.pid)
        process["holds_gpu"] = stat.pid in self._holders
        process["listens"] = sorted(listens)
        return process


STALLED_S, STAT_S = 1.0, 0.4
"""A pass that waits at one process for this long, or at its stat line, is stuck on it."""

_RETRY_DIVISOR = 4
"""A pass after a stuck one has only this part of that time: each of many users may hold one up."""

_STEP_S = 0.05

TRIES = 64


def read(
    gpu_mib: dict[int, int | None], until: float, problems: list[str], stuck: set[int]
) -> dict[str, Any] | None:
    """Return the document's `Processes`; None if /proc did not answer even without the stuck ones.

    Reading the command or environment of a process takes a lock of its memory. If one of its
    threads hangs in the driver with that lock, the reader hangs too. So a child reads and notes its
    position, and after a stall the next child skips that process, and all in D state.
    """
    run_pid = os.getpid()
    patient = GuardedSurvey(lambda care: Survey(run_pid, gpu_mib, care).run(), stuck)
    answer = patient.finish(until, problems)
    dropped = 0 if answer is None else answer.pop("dropped")
    if dropped:
        problems.append(f"processes: {dropped} more notable ones were left out")
    return answer


class GuardedSurvey:
    """Runs a survey of processes in a child, and starts it again in another one if it hangs.

    `stuck`: the processes at which one of the probe's readers hung, as marks; this survey adds its
    own.
    """

    def __init__(self, survey: Callable[[Care], dict[str, Any]], stuck: set[int]) -> None:
        self._survey, self._stuck = survey, stuck
        self._shared = mmap.mmap(-1, _MARK.size)
        self._begin()

    def _begin(self) -> None:
        self._avoided = set(self._stuck)
        self._child = guard.spawn(self._survey, Care(self._avoided, self._shared))

    def finish(self, until: float, problems: list[str]) -> dict[str, Any] | None:
        """Return its answer, of another child if it hangs; None if none answers."""
        for tries_left in reversed(range(TRIES)):
            child = self._child
            # Where another reader hung meanwhile, this one most likely hangs there, too.
            others_hung = bool(self._stuck - self._avoided)
            answered = child.listen(guard.clock.now()) if others_hung else self._listen(until)
            if not child.dismiss(kill=not answered):
                problems.append(f"processes: our reader {child.pid} cannot be killed")
            mark, _ = _MARK.unpack_from(self._shared)
            if answered or not (tries_left and (mark or others_hung)) or guard.clock.now() > until:
                break
            if not others_hung:
                self._stuck.add(mark)
            self._begin()
        for pid in sorted(self._avoided):
            part = "state" if pid < 0 else "command or environment"
            problem = f"process {abs(pid)}: reading its {part} hangs"
            problems += [problem] if problem not in problems else []
        try:
            if answered:
                return dict(self._child.value())
            problems.append("processes: /proc did not answer in time")
        except guard.BrokenError as error:
            problems.append(f"processes: {error}")
        return None

    def _listen(self, until: float) -> bool:
        """Wait for the answer as long as the pass makes progress."""
        last_mark, since_s, share = b"", 0.0, _RETRY_DIVISOR if self._avoided else 1
        while guard.clock.now() < until:
            if self._child.listen(min(until, guard.clock.now() + _STEP_S)):
                return True
            mark, waited_s = self._shared[:], self._child.waiting.seconds
            if mark != last_mark:
                last_mark, since_s = mark, waited_s
            elif waited_s - since_s > (STAT_S if _MARK.unpack(mark)[0] < 0 else STALLED_S) / share:
                return False
        return False


def survivor(pid: int, what: str) -> dict[str, Any] | None:
    """Describe a child that SIGKILL did not end, by safe reads only; None if it is gone."""
    stat = look(pid)
    if stat is None:
        return None
    user, command = clean(login_name()), f"{what} {bracketed_name(stat)}"
    return {**_stat_fields(stat, user, command), "wchan": procfs.wchan(pid), "ours": True}


def _stat_fields(stat: Stat, user: str, command: str) -> dict[str, Any]:
    """Return the fields of a `Process` that its stat line has."""
    return {
        "pid": stat.pid,
        "ppid": stat.ppid,
        "state": stat.state,
        "user": user,
        "command": command,
        "age_s": round(stat.age_s(), 3),
        "threads": stat.threads,
    }
