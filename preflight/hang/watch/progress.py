"""Finds the ranks below a launch, and whether each of them still makes progress.

Work between two collectives is visible: a rank reads, writes, touches memory, yields the CPU. A
rank that waits for others shows almost nothing, whether it sleeps (gloo) or spins at 100 % (NCCL):
so CPU time decides nothing, and each rank is compared with its own past.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread, current_thread
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from preflight.core.statistics import grouped
from preflight.core.text import whole

_Result = TypeVar("_Result")

_TICKS = os.sysconf("SC_CLK_TCK")
_LONGEST = 1 << 20
_STATE, _PARENT, _MINFLT, _UTIME, _STIME, _START = 0, 1, 7, 11, 12, 19
"""Fields of /proc/PID/stat, counted from the one after the name in brackets."""


class Reading(NamedTuple):
    """One look at a process; each number is its total since its start."""

    started: int
    """Start in clock ticks since boot: identifies the process together with its pid."""
    state: str
    cpu_s: float
    """CPU time of all its threads."""
    faults: int
    """Minor page faults: pages touched for the first time, without disk reads."""
    switches: int
    """Voluntary context switches of its main thread."""
    calls: int
    """Reads and writes of files and pipes; 0 if the kernel does not permit reading them."""
    moved: int
    """Bytes of these."""


def readings_of(pids: Iterable[int]) -> dict[int, Reading | None]:
    """Look at these processes; None for those that have ended, or whose reader hangs."""
    pid_list = list(pids)
    return _read_in_thread(lambda: {pid: reading_of(pid) for pid in pid_list})


def reading_of(pid: int) -> Reading | None:
    """Look at a process; None if it has ended."""
    stat, status = _stat(pid), _fields(f"/proc/{pid}/status")
    if not stat or not status:
        return None
    io = _fields(f"/proc/{pid}/io")
    return Reading(
        started=int(stat[_START]),
        state=stat[_STATE],
        cpu_s=(int(stat[_UTIME]) + int(stat[_STIME])) / _TICKS,
        faults=int(stat[_MINFLT]),
        switches=int(status.get("voluntary_ctxt_switches", 0)),
        calls=int(io.get("syscr", 0)) + int(io.get("syscw", 0)),
        moved=int(io.get("rchar", 0)) + int(io.get("wchar", 0)),
    )


def pending_signals(pid: int) -> frozenset[int]:
    """Signals that are pending for a whole process."""
    bits = int(_fields(f"/proc/{pid}/status").get("ShdPnd", "0"), 16)
    return frozenset(number + 1 for number in range(64) if bits >> number & 1)


def environ_of(pid: int) -> dict[str, str]:
    """The initial environment of a process; empty if it cannot be read."""
    text = _text(f"/proc/{pid}/environ")
    return dict(pair.partition("=")[::2] for pair in text.split("\0") if "=" in pair)


def name_of(pid: int) -> str:
    """Its name, as in `ps`; empty if it has ended."""
    return _text(f"/proc/{pid}/comm").strip()


def command_of(pid: int) -> str:
    """Its command line; empty if it has ended."""
    return _text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()


def parent_of(pid: int) -> int:
    """The pid of its parent; 0 if it has ended."""
    stat = _stat(pid)
    return int(stat[_PARENT]) if stat else 0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; empty if it has ended."""
    stat = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return stat if len(stat) > _START else []


def children(pid: int) -> list[int]:
    """Its children, oldest first."""
    pids: list[str] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  cheaper
            pids += _text(f"/proc/{pid}/task/{thread}/children").split()
    return sorted(map(int, pids))


def _fields(path: str) -> dict[str, str]:
    """The lines `name: value` of a file of /proc."""
    return dict(line.partition(":")[::2] for line in _text(path).splitlines())


_PATIENCE_S, _LESS_S = 1.0, 0.1
"""How long to wait at one file of /proc, and at each further one while a reader hangs."""


class _Reader(Thread, Generic[_Result]):
    """Reads files of /proc, and notes of which process."""

    def __init__(self, read: Callable[[], _Result]) -> None:
        super().__init__(daemon=True)
        self.found: list[_Result] = []
        self.error: Exception | None = None
        self.process, self.files = "", 0
        self._read = read

    def run(self) -> None:
        """Read all, unless it hangs."""
        try:
            self.found.append(self._read())
        except Exception as error:  # noqa: BLE001  it is raised where the answer is wanted
            self.error = error

    def begin(self, process: str) -> None:
        """Note the process; TimeoutError if this reader was given up."""
        if self in _hanging.values():
            raise TimeoutError
        self.process, self.files = process, self.files + 1


_hanging: dict[str, Thread] = {}
"""Readers that were given up, by the pid of the process at which they hang."""


def _hangs(process: str) -> bool:
    return process in _hanging and _hanging[process].is_alive()


def _read_in_thread(read: Callable[[], _Result]) -> _Result:
    """Read in a thread; if it hangs at a process, again without that process.

    Since Linux 6.18 even `stat` waits for a process that starts a program (execve), and the file
    system of the program may keep that one for ever: the launch would get no signal any more.
    """
    while True:
        reader, files = _Reader(read), -1
        reader.start()
        while reader.is_alive() and reader.files != files:
            files = reader.files
            reader.join(_LESS_S if any(map(_hangs, _hanging)) else _PATIENCE_S)
        if reader.error is not None:
            raise reader.error
        if reader.found:
            return reader.found[0]
        _hanging[reader.process] = reader


def _text(path: str) -> str:
    """A file of /proc; empty if its process has ended, or it cannot be read or hangs a reader."""
    process, this = path.split("/")[2], current_thread()
    if isinstance(this, _Reader):
        this.begin(process)
    if _hangs(process):
        return ""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(handle, _LONGEST).decode("utf-8", "replace")
        finally:
            os.close(handle)
    return ""


_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Rank variables of torchrun, Slurm, Open MPI and MPICH; the first that is set counts."""

_RANK_VARIABLES = (*_RANK, "LOCAL_RANK")
"""Variables that a launcher sets for each rank. Kubernetes numbers pods by RANK, and torchrun under
srun inherits its task's: a process with the launch's own values is not a rank."""

_WRAPPERS = frozenset(
    {
        "bash", "dash", "env", "ksh", "ncu", "nice", "nsys", "numactl", "sh", "srun", "stdbuf",
        "taskset", "time", "timeout", "zsh",
    }
)  # fmt: skip
"""Programs that start the real one and then wait: their progress means nothing."""

_LAUNCHERS = ("accelerate", "deepspeed", "torch.distributed", "torchrun")
_DEEPEST = 12


class RankProcess(NamedTuple):
    """A process that is a rank."""

    pid: int
    rank: int


class _Start(NamedTuple):
    """The command line and environment of a process.

    The kernel reads both from the process's memory, and blocks if that is locked, as in a rank that
    hangs in a page fault. So they are read once, while the process is young.
    """

    name: str
    started: int
    command: str
    rank: int | None
    rank_variables: tuple[str | None, ...]


Known: TypeAlias = dict[int, _Start]


def ranks_of(launch: int, known: Known | None = None) -> list[RankProcess]:
    """Every rank below the launch on this node; empty while it waits for other nodes, for example.

    The launch may itself be a rank: `srun preflight watch -- python train.py`. `known`: results of
    an earlier search.
    """
    return _read_in_thread(lambda: _ranks_of(launch, {} if known is None else known))


def _ranks_of(launch: int, starts: Known) -> list[RankProcess]:
    search = _Search(launch, starts)
    search.below(launch, 0)
    if search.found:
        return search.found
    rank, python = search.facts_of(launch).rank, search.behind_wrappers(launch)
    if rank is None or any(word in search.facts_of(python).command for word in _LAUNCHERS):
        return []
    return [RankProcess(python, rank)]


def rank_in(environ: Mapping[str, str]) -> int | None:
    """The rank in a process's environment."""
    return whole(next((environ[name] for name in _RANK if name in environ), ""))


class _Search:
    """Searches down from a launch; lists all processes if the kernel lists no children."""

    def __init__(self, launch: int, starts: Known) -> None:
        self.found: list[RankProcess] = []
        self._known = starts
        self._launch_variables = self.facts_of(launch).rank_variables
        self._all: dict[int, list[int]] | None = None
        if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
            pids = [pid for name in os.listdir("/proc") if (pid := whole(name)) is not None]  # noqa: PTH208  cheaper
            self._all = grouped((parent_of(pid), pid) for pid in sorted(pids))

    def below(self, pid: int, depth: int) -> None:
        """Find the ranks below a process that is not a rank."""
        if depth >= _DEEPEST:
            return
        for child in self._children(pid):
            facts = self.facts_of(child)
            if facts.rank is None or facts.rank_variables == self._launch_variables:
                self.below(child, depth + 1)
            else:
                self.found.append(RankProcess(self.behind_wrappers(child), facts.rank))

    def facts_of(self, pid: int) -> _Start:
        """Its command line and environment; read once, and again if its program changes."""
        stat = _stat(pid)
        name, started = name_of(pid), int(stat[_START]) if stat else 0
        start = self._known.get(pid)
        if start is None or (start.name, start.started) != (name, started):
            environ = environ_of(pid)
            rank_variables = tuple(environ.get(name) for name in _RANK_VARIABLES)
            start = _Start(name, started, command_of(pid), rank_in(environ), rank_variables)
            self._known[pid] = start
        return start

    def behind_wrappers(self, pid: int) -> int:
        """The process that computes, below a shell or other wrapper."""
        for _ in range(_DEEPEST):
            children = self._children(pid)
            if name_of(pid) not in _WRAPPERS or not children:
                break
            pid = children[0]
        return pid

    def _children(self, pid: int) -> list[int]:
        return children(pid) if self._all is None else self._all.get(pid, [])


QUIET_SHARE = 0.1
"""Share of a rank's usual rate. Chosen: a job at a tenth of its pace is worth a look."""

_MOST_STORED = 64
_STRIDES = 4
"""How many times per window its rates are stored as usual ones."""


class Rates(NamedTuple):
    """A rank's activity per second."""

    faults: float
    switches: float
    calls: float
    moved: float


FLOORS = Rates(faults=50, switches=20, calls=5, moved=16 << 10)
"""Rates below these count as nothing. Chosen; ranks of torch 2.13 that wait in a gloo collective,
or sleep, were measured at 0.3 switches per second and 0 of the others."""


class Track:
    """A rank's activity in the last window, and its usual activity."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._looks: deque[tuple[float, Reading]] = deque()
        self._history: deque[Rates] = deque(maxlen=_MOST_STORED)
        self._stored_s: float | None = None

    def add(self, now_s: float, reading: Reading) -> None:
        """Add a look."""
        if self._looks and self._looks[-1][1].started != reading.started:
            self.forget()
            self._history.clear()
            self._stored_s = None
        self._looks.append((now_s, reading))
        while len(self._looks) > 2 and self._looks[1][0] <= now_s - self._window_s:  # noqa: PLR2004
            self._looks.popleft()
        self._store_usual(now_s)

    def _store_usual(self, now_s: float) -> None:
        if (rates := self.rates) is None:
            return
        if self._stored_s is None:
            # The first window is the start: imports are busier than anything later.
            self._stored_s = now_s
        elif now_s - self._stored_s >= self._window_s / _STRIDES:
            self._history.append(rates)
            self._stored_s = now_s

    def forget(self) -> None:
        """Drop the looks before a pause of the watch: they do not cover it."""
        self._looks.clear()

    def learn(self) -> None:
        """Take its present activity as usual: an examination found that it progresses."""
        self._history.clear()
        if rates := self.rates:
            self._history.append(rates)

    @property
    def rates(self) -> Rates | None:
        """The rates of the last window; None until a whole window has passed."""
        if not self._looks:
            return None
        (then_s, then), (now_s, now) = self._looks[0], self._looks[-1]
        span_s = now_s - then_s
        if span_s < self._window_s:
            return None
        changes = (getattr(now, field) - getattr(then, field) for field in Rates._fields)
        return Rates(*(change / span_s for change in changes))

    @property
    def quiet(self) -> bool:
        """Whether it did almost nothing for a whole window."""
        rates = self.rates
        return rates is not None and all(
            rate <= max(floor, QUIET_SHARE * usual)
            for rate, floor, usual in zip(rates, FLOORS, self._usual(), strict=True)
        )

    def _usual(self) -> Rates:
        if not self._history:
            return Rates(0, 0, 0, 0)
        return Rates(*(sorted(past)[len(past) // 2] for past in zip(*self._history, strict=True)))


def stalled(tracks: Iterable[Track]) -> bool:
    """Whether to examine the job: at least half of the ranks here were quiet for the window.

    Half, because one rank that works alone (an evaluation, a checkpoint, an endless loop) keeps all
    others waiting, and with two ranks that is one.
    """
    quiet = [track.quiet for track in tracks]
    return bool(quiet) and 2 * sum(quiet) >= len(quiet)
