"""Reads one process from /proc: its stat line, files, user and sockets."""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import os
import re
import time
from typing import Any, Iterator, Mapping

import start

from .node_files import attempt, attempt_raw, clean, raw

_JOB = rb"(?m)(?:^|/)job_(\d+)(?:/|$)"
_GPU, _SOCKET = "/dev/nvidia", "socket:["
ENVIRON_LIMIT = 1 << 20


def argv(pid: int) -> list[bytes]:
    """Return its command line; [] for a zombie, a kernel thread, or a hidden process."""
    line = attempt_raw(f"/proc/{pid}/cmdline").rstrip(b"\0 ")
    return line.split(b"\0") if line else []


def environ(pid: int) -> bytes | None:
    """Return its initial environment, raw; None where this login may not read it."""
    try:
        return raw(f"/proc/{pid}/environ", ENVIRON_LIMIT)
    except OSError:
        return None


def variables(block: bytes | None) -> dict[bytes, bytes]:
    """Split a raw environment into names and values."""
    entries = (entry.partition(b"=") for entry in (block or b"").split(b"\0"))
    return {name: value for name, equals, value in entries if equals}


def status(pid: int | str) -> dict[bytes, list[bytes]]:
    """Return the words of each line of /proc/PID/status by its name; {} for a hidden process."""
    # Only a newline ends a line: the process name may contain a carriage return.
    lines = attempt_raw(f"/proc/{pid}/status").split(b"\n")
    return {name: words.split() for name, _, words in (line.partition(b":") for line in lines)}


def uid(pid: int) -> int | None:
    """Return its real user id, which started it: in a setuid program the effective one is root's.

    From `status`: the folder's owner may be root instead.
    """
    uids = status(pid).get(b"Uid")
    return int(uids[0]) if uids else None


def inner_pid(pid: int) -> int | None:
    """Return its pid in the innermost PID namespace that it is in; None if that is not known."""
    pids = status(pid).get(b"NSpid")
    return int(pids[-1]) if pids else None


def has_capability(number: int) -> bool:
    """Whether a capability of capabilities(7) is effective in this process."""
    (effective,) = status("self").get(b"CapEff", [b"0"])
    return bool(int(effective, 16) >> number & 1)


SUBUIDS = "/etc/subuid"


def owner(pid: int) -> int | None:
    """Return the user who answers for a process: of a user's subordinate ids (subuid(5)), one."""
    user = uid(pid)
    return None if user is None else answering(user)


def answering(user: int) -> int:
    """Return the user who answers for a user id: of a user's subordinate ids, one."""
    index = bisect.bisect(_subordinates(SUBUIDS), (user, 1 << 32)) - 1
    first, count = _subordinates(SUBUIDS)[index] if index >= 0 else (0, 0)
    return ~first if first <= user < first + count else user


@functools.lru_cache(maxsize=1)
def _subordinates(path: str) -> list[tuple[int, int]]:
    lines = re.findall(rb"(?m)^[^:\n]+:(\d{1,10}):(\d{1,10})\s*$", attempt_raw(path, 1 << 20))
    return sorted((int(first), int(count)) for first, count in lines)


def is_daemon(pid: int, name: str) -> bool:
    """Whether root started it from a program of that name: any user can set a process name.

    The real user counts, as the effective user is root in any setuid program; the program counts,
    too, where this login may see it.
    """
    return uid(pid) == 0 and (os.path.basename(link(pid, "exe")) or name).startswith(name)


def link(pid: int | str, name: str) -> str:
    """Return where a link of its folder leads: exe, cwd, ns/net; "" where it may not be read."""
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""


def wchan(pid: int) -> str:
    """Return the kernel function in which it sleeps; "" where not known."""
    name = attempt(f"/proc/{pid}/wchan")
    return "" if name == "0" else name


def scheduled(place: int | str) -> tuple[float, float] | None:
    """Seconds that PID or PID/task/TID had a CPU, and was ready to run but did not.

    None without schedstats. Source: Documentation/scheduler/sched-stats.rst, in nanoseconds.
    """
    fields = attempt_raw(f"/proc/{place}/schedstat").split()
    return (int(fields[0]) / 1e9, int(fields[1]) / 1e9) if len(fields) > 1 else None


def job(pid: int) -> str:
    """Return the Slurm job whose cgroup holds it; "" if none does."""
    match = re.search(_JOB, attempt_raw(f"/proc/{pid}/cgroup"))
    return match.group(1).decode("ascii") if match else ""


class OpenFiles:
    """The GPUs and sockets that a process has open."""

    def __init__(self, links: list[str]) -> None:
        self.gpu = any(
            target.startswith(_GPU) and target[len(_GPU) :][:1].isdigit() for target in links
        )
        self.sockets = {target[len(_SOCKET) : -1] for target in links if target.startswith(_SOCKET)}
        self.count = len(links)


MOST_FILES = 1 << 17
"""Most open files that are read: a process may have more than 1,000,000."""


def open_files(pid: int, most: int = MOST_FILES) -> OpenFiles | None:
    """Return what it has open, of `most` files; None where this login may not read that."""
    folder = f"/proc/{pid}/fd"
    targets = []
    try:
        with os.scandir(folder) as entries:
            for entry in itertools.islice(entries, most):
                with contextlib.suppress(FileNotFoundError):
                    targets.append(os.readlink(entry.path))
    except OSError:
        return None
    return OpenFiles(targets)


PF_KTHREAD = 0x00200000
_STAT_FIELDS = 20
"""Fields after `comm` up to the start time."""

TICKS = os.sysconf("SC_CLK_TCK")


class Stat:
    """The stat line of one process: the kernel reads no memory of it."""

    __slots__ = ("comm", "cpu_s", "kernel", "pid", "ppid", "start", "state", "threads")

    def __init__(self, line: bytes) -> None:
        """Parse a line of /proc/PID/stat (proc(5)); ValueError for anything else.

        `comm` may itself hold blanks and parentheses, so it ends at the *last* one.
        """
        pid, opening, rest = line.partition(b" (")
        comm, closing, rest = rest.rpartition(b") ")
        fields = rest.split(None, _STAT_FIELDS)
        if not (opening and closing and len(fields) >= _STAT_FIELDS):
            raise ValueError("not a line of /proc/PID/stat")
        self.pid = int(pid)
        self.comm = comm
        self.state = fields[0].decode("ascii")
        self.ppid = int(fields[1])
        self.kernel = bool(int(fields[6]) & PF_KTHREAD)
        self.threads = max(0, int(fields[17]) - 1)
        """Threads besides the leader."""
        self.start = int(fields[19])
        """Clock ticks after boot; with the pid it identifies a process uniquely."""
        self.cpu_s = (int(fields[11]) + int(fields[12])) / TICKS
        """Seconds of CPU time, of all its threads."""

    def age_s(self) -> float:
        """Seconds since it was started."""
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - self.start / TICKS)


def look(pid: int, thread: int | None = None) -> Stat | None:
    """Return the current stat of a process, or of one of its threads; None if it is gone."""
    task = "" if thread is None else f"/task/{thread}"
    try:
        return Stat(attempt_raw(f"/proc/{pid}{task}/stat", 4096))
    except ValueError:
        return None


def descendants(pid: int, everyone: Mapping[int, Stat]) -> set[int]:
    """Return those of `everyone` that descend from a process."""
    return set(generations(pid, children(everyone)))


def generations(pid: int, tree: Mapping[int, list[int]]) -> list[int]:
    """Return its children, then theirs, and so on; `tree`: the children of each process."""
    family = {pid: None}  # a dict keeps their order
    level = tree.get(pid, [])
    while level:
        family.update(dict.fromkeys(level))
        level = [child for parent in level for child in tree.get(parent, []) if child not in family]
    return list(family)[1:]


def children(everyone: Mapping[int, Stat]) -> dict[int, list[int]]:
    """Return the children of each of these processes that has any."""
    by_parent: dict[int, list[int]] = {}
    for pid, stat in everyone.items():
        by_parent.setdefault(stat.ppid, []).append(pid)
    return by_parent


def outline(pid: int) -> Stat | None:
    """Return what `status` has of a stat line, as of a process that began with the machine.

    Linux reads `stat` under a lock that a process holds while it starts a program (execve), and
    `status` without it.
    """
    words = status(pid)
    comm = attempt_raw(f"/proc/{pid}/comm").rstrip(b"\n")
    try:
        state, parent, threads = (words[name][0] for name in (b"State", b"PPid", b"Threads"))
    except LookupError:
        return None
    fields = [state, parent, *[b"0"] * 15, threads, b"0", b"0"]
    return Stat(b"%d (%s) %s" % (pid, comm, b" ".join(fields)))


def pids() -> list[int]:
    """Return the pids of all processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


class Users:
    """Names of user ids, each looked up once.

    `patient=False` reads only /etc/passwd: a directory (LDAP, SSSD) may block for minutes, so it
    is queried only in a guarded child.
    """

    def __init__(self, *, patient: bool) -> None:
        self._patient = patient
        self._names: dict[int, str] = {}

    def name(self, uid: int) -> str:
        """Return the login name, or the number as text where it has none."""
        if not self._names:
            self._names = _local()
        if uid not in self._names:
            self._names[uid] = (self._patient and _from_directory(uid)) or str(uid)
        return self._names[uid]


def _local() -> dict[int, str]:
    names: dict[int, str] = {}
    with contextlib.suppress(OSError), open("/etc/passwd", "rb") as file:
        for line in file.read().decode("utf-8", "replace").split("\n"):
            name, _, uid, *_ = [*line.split(":"), "", ""]
            if uid.isdigit():
                names.setdefault(int(uid), name)
    return names or {0: "root"}


def _from_directory(uid: int) -> str:
    import pwd  # only for users not in /etc/passwd

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return ""


def login_name() -> str:
    """Return this login's name; USER's value if only a directory has the name."""
    name = Users(patient=False).name(os.geteuid())
    return os.environ.get("USER", name) if name.isdigit() else name


def up_s() -> float:
    """Return the seconds since the machine booted, as the kernel log counts them.

    A time namespace, as of a restored container, moves CLOCK_BOOTTIME, but not the log's clock.
    """
    offset = re.search(rb"(?m)^boottime +(-?\d+) +(\d+)$", attempt_raw("/proc/self/timens_offsets"))
    offset_s = int(offset[1]) + int(offset[2]) / 1e9 if offset else 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - offset_s


def identity(nonce: str) -> dict[str, Any]:
    """Return the first fields of each document: the node's name and its time."""
    uptime_s = up_s()
    now_s = max(time.time(), uptime_s)  # with a dead battery the date may be before the boot
    return {
        "wire": start.VERSION,
        "nonce": nonce,
        "host": clean(os.uname().nodename),
        "time_s": round(now_s, 3),
        "boot_s": round(max(0.0, now_s - uptime_s), 3),
    }


LISTEN = "0A"

_LEAST_FIELDS = 10
"""Fields up to the inode."""


class Socket:
    """One line of /proc/net/tcp or tcp6."""

    __slots__ = ("fields", "inode", "port", "state", "uid")

    def __init__(self, line: str) -> None:
        """Parse a line; ValueError for the heading and anything else."""
        self.fields = fields = line.split()
        if len(fields) < _LEAST_FIELDS or not fields[0].endswith(":"):
            raise ValueError("not a line of /proc/net/tcp")
        self.port = int(fields[1].rpartition(":")[2], 16)
        """Local port."""
        self.state = fields[3]
        self.uid = int(fields[7])
        self.inode = fields[9]
        """"0" once no process has it open."""


def tcp(pid: int | str = "self") -> Iterator[Socket]:
    """Yield every TCP socket of this network namespace, both families."""
    for table in (f"/proc/{pid}/net/tcp", f"/proc/{pid}/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii", errors="replace") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    yield Socket(line)
