"""Which processes beneath a launch are its ranks, and what /proc tells of each."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from preflight.core.text import whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_TICKS = os.sysconf("SC_CLK_TCK")
_LONGEST = 1 << 20
_STATE, _PARENT, _MINFLT, _UTIME, _STIME, _START = 0, 1, 7, 11, 12, 19
"""Fields of /proc/PID/stat, counted from the one behind the name in brackets."""


class Reading(NamedTuple):
    """One look at a process; each number is what it has come to since its start."""

    started: int
    """In clock ticks since boot: with the pid, who it is."""
    state: str
    cpu_s: float
    """Of all its threads."""
    faults: int
    """Pages that it touched for the first time, none of them from a disk."""
    switches: int
    """How often its main thread gave up the CPU by itself."""
    calls: int
    """Reads and writes of files and pipes; 0 where the kernel does not let us see."""
    moved: int
    """Bytes of these."""


def reading_of(pid: int) -> Reading | None:
    """Look at one; None when it has gone."""
    stat = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    status = _text(f"/proc/{pid}/status")
    if len(stat) <= _START or not status:
        return None
    io = dict(line.split(": ") for line in _text(f"/proc/{pid}/io").splitlines())
    return Reading(
        started=int(stat[_START]),
        state=stat[_STATE],
        cpu_s=(int(stat[_UTIME]) + int(stat[_STIME])) / _TICKS,
        faults=int(stat[_MINFLT]),
        switches=int(_field(status, "voluntary_ctxt_switches") or 0),
        calls=int(io.get("syscr", 0)) + int(io.get("syscw", 0)),
        moved=int(io.get("rchar", 0)) + int(io.get("wchar", 0)),
    )


def pending_signals(pid: int) -> frozenset[int]:
    """Signals that were sent to a process as a whole, and that it has not taken."""
    bits = int(_field(_text(f"/proc/{pid}/status"), "ShdPnd") or "0", 16)
    return frozenset(number + 1 for number in range(64) if bits >> number & 1)


def environ_of(pid: int) -> dict[str, str]:
    """What a process was started with; empty where that is not ours to read."""
    text = _text(f"/proc/{pid}/environ")
    return dict(one.partition("=")[::2] for one in text.split("\0") if "=" in one)


def name_of(pid: int) -> str:
    """Its name, as `ps` tells it; empty when it has gone."""
    return _text(f"/proc/{pid}/comm").strip()


def command_of(pid: int) -> str:
    """Its words, a blank between them; empty when it has gone."""
    return _text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()


def parent_of(pid: int) -> int:
    """Whose child it is; 0 when it has gone."""
    return _of_stat(pid, _PARENT)


def start_of(pid: int) -> int:
    """When it was started, in clock ticks since boot; 0 when it has gone."""
    return _of_stat(pid, _START)


def _of_stat(pid: int, place: int) -> int:
    stat = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(stat[place]) if len(stat) > place else 0


def children(pid: int) -> list[int]:
    """Its children, oldest first."""
    found: list[str] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  cheaper
            found += _text(f"/proc/{pid}/task/{thread}/children").split()
    return sorted(map(int, found))


def _field(text: str, field: str) -> str:
    start = text.find(f"\n{field}:")
    return text[start + len(field) + 2 : text.find("\n", start + 1)].strip() if start >= 0 else ""


def _text(path: str) -> str:
    """A file of /proc; empty when its process has gone, or where it is not ours to read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(handle, _LONGEST).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(handle)


_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""As torchrun, Slurm, Open MPI and MPICH number them; the first that is there counts."""

_PLACE = (*_RANK, "LOCAL_RANK")
"""What a launcher sets anew for each rank. Kubernetes numbers pods by RANK, and torchrun under srun
inherits its task's: who has just what the launch was given is no rank of his own."""

_WRAPPERS = frozenset(
    {
        "bash", "dash", "env", "ksh", "ncu", "nice", "nsys", "numactl", "sh", "srun", "stdbuf",
        "taskset", "time", "timeout", "zsh",
    }
)  # fmt: skip
"""They start what computes, and then wait: their own progress says nothing."""

_LAUNCHERS = ("accelerate", "deepspeed", "torch.distributed", "torchrun")
_DEEPEST = 12


class Seat(NamedTuple):
    """A process that is a rank."""

    pid: int
    rank: int


class _Start(NamedTuple):
    """What a process was started with.

    The kernel reads these two out of the process's own memory, and waits where that is locked: in
    a rank that hangs in a page fault, say. So they are read while it is young, and never again.
    """

    name: str
    started: int
    command: str
    rank: int | None
    place: tuple[str | None, ...]


Known: TypeAlias = dict[int, _Start]


def ranks_of(
    launch: int, given: Mapping[str, str] | None = None, known: Known | None = None
) -> list[Seat]:
    """Every rank beneath the launch on this node. None: it still waits for its other nodes, say.

    `given`: our own environment. A launch with a rank there may be one itself: `srun preflight
    watch -- python train.py`. `known`: what an earlier search has read.
    """
    own = os.environ if given is None else given
    search = _Search(own, {} if known is None else known)
    search.below(launch, 0)
    if search.found:
        return search.found
    rank, python = rank_in(own), search.behind_wrappers(launch)
    if rank is None or any(word in search.of(python).command for word in _LAUNCHERS):
        return []
    return [Seat(python, rank)]


def rank_in(environ: Mapping[str, str]) -> int | None:
    """The rank that a process was started as."""
    told = next((environ[name] for name in _RANK if name in environ), "")
    return whole(told)


class _Search:
    """From a launch downwards; a kernel without lists of children is asked about everybody."""

    def __init__(self, given: Mapping[str, str], known: Known) -> None:
        self.found: list[Seat] = []
        self._known = known
        self._given = _place(given)
        self._all: dict[int, list[int]] | None = None
        if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
            self._all = _everybody()

    def below(self, pid: int, depth: int) -> None:
        """Find the ranks below one that is none."""
        if depth >= _DEEPEST:
            return
        for child in self._children(pid):
            one = self.of(child)
            if one.rank is None or one.place == self._given:
                self.below(child, depth + 1)
            else:
                self.found.append(Seat(self.behind_wrappers(child), one.rank))

    def of(self, pid: int) -> _Start:
        """What it was started with; read once, and again where its program is another."""
        name, started = name_of(pid), start_of(pid)
        one = self._known.get(pid)
        if one is None or (one.name, one.started) != (name, started):
            environ = environ_of(pid)
            one = _Start(name, started, command_of(pid), rank_in(environ), _place(environ))
            self._known[pid] = one
        return one

    def behind_wrappers(self, pid: int) -> int:
        """The process that computes, where a shell or the like stands before it."""
        for _ in range(_DEEPEST):
            children = self._children(pid)
            if name_of(pid) not in _WRAPPERS or not children:
                break
            pid = children[0]
        return pid

    def _children(self, pid: int) -> list[int]:
        return children(pid) if self._all is None else self._all.get(pid, [])


def _place(environ: Mapping[str, str]) -> tuple[str | None, ...]:
    return tuple(environ.get(name) for name in _PLACE)


def _everybody() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for pid in map(whole, os.listdir("/proc")):  # noqa: PTH208  cheaper
        if pid is not None and (parent := parent_of(pid)):
            found.setdefault(parent, []).append(pid)
    return {parent: sorted(below) for parent, below in found.items()}


_CHANGED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these from its start; what it starts must not."""

_LOOKS, _BETWEEN_S = 200, 0.005
"""A second for a killed process to be gone."""


class Children:
    """Starts processes, and knows how each ended."""

    def __init__(self, mask: Iterable[int]) -> None:
        """`mask`: the signals that were blocked before we blocked ours."""
        self._mask = frozenset(mask)
        self._ended: dict[int, int] = {}
        self._ours: set[int] = set()

    def start(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        files: Sequence[tuple[Any, ...]] = (),
        *,
        blocked: Iterable[int] = (),
        default: Iterable[int] = (),
    ) -> int:
        """Start one by the PATH that it gets; OSError where it cannot be.

        `files`: as `os.posix_spawn` takes them.

        Descriptors that we inherited are its own too; those that we opened are not.
        """
        program = shutil.which(words[0], path=environ.get("PATH")) or words[0]
        pid = os.posix_spawnp(
            program, list(words), environ,
            file_actions=list(files),
            setsigmask=self._mask | frozenset(blocked),
            setsigdef=[*_CHANGED_BY_PYTHON, *default],
        )  # fmt: skip
        self._ours.add(pid)
        return pid

    def reap(self) -> None:
        """Take note of all that have ended; orphans that were given to us are let go."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self._ours:
                    self._ended[pid] = status

    def status(self, pid: int) -> int | None:
        """How it ended, as waitpid tells it; None while it runs."""
        return self._ended.get(pid)

    def end(self, pid: int) -> None:
        """End one of ours; one that the kernel does not let go (D state) is left behind."""
        self.reap()
        if pid in self._ended:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        for _ in range(_LOOKS):
            self.reap()
            if pid in self._ended:
                return
            time.sleep(_BETWEEN_S)
