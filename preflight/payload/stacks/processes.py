"""The processes of a node with what they were started with, each read once and with care."""

from __future__ import annotations

import os
import re
from collections import deque

from probe import procfs
from probe.processes import ancestors
from probe.procfs import everyone
from probe.text import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from typing import Any

    from probe.processes import Care
    from probe.procfs import Stat

    Environ = Mapping[bytes, bytes]
    Seat = dict[str, Any]


_DEEPEST = 64
"""Ancestors looked at: a loop made by reused pids must end."""


class Kin:
    """The processes of a node as a tree."""

    def __init__(self, stats: Mapping[int, Stat]) -> None:
        self.stats = dict(stats)
        self.roots: list[int] = []
        """The topmost process of each seat, once `join`ed."""
        self._root_of: dict[int, int] = {}
        self._below: dict[int, list[int]] = {}
        self._grow()

    def keep(self, pids: Collection[int]) -> None:
        """Forget all but these."""
        self.stats = {pid: one for pid, one in self.stats.items() if pid in pids}
        self._grow()

    def of(self, pid: int) -> list[int]:
        """Return its children."""
        return self._below.get(pid, [])

    def below(self, pid: int) -> list[int]:
        """Return all that descend from it, the nearest first."""
        found: list[int] = []
        waiting = deque(self.of(pid))
        seen = {pid}
        while waiting:
            one = waiting.popleft()
            if one not in seen:
                seen.add(one)
                found.append(one)
                waiting += self.of(one)
        return found

    def above(self, pid: int) -> Iterator[int]:
        """Yield its ancestors, the nearest first."""
        for _ in range(_DEEPEST):
            if pid not in self.stats:
                return
            pid = self.stats[pid].ppid
            if pid in self.stats:
                yield pid

    def join(self, seats: Mapping[int, Seat]) -> None:
        """Put processes with the same seat below each other into one group."""
        for pid in seats:
            alike = [one for one in self.above(pid) if same(seats.get(one), seats[pid])]
            self._root_of[pid] = alike[-1] if alike else pid
        self.roots = sorted(set(self._root_of.values()), key=lambda pid: self.stats[pid].start)

    def members(self, root: int) -> list[int]:
        """Return the processes with a root's seat, itself first and the nearest next."""
        return [pid for pid in (root, *self.below(root)) if self._root_of.get(pid) == root]

    def parent_of_seat(self, pid: int) -> int | None:
        """Return the parent of its seat's topmost process; None where that is not to be seen."""
        parent = self.stats[self._root_of.get(pid, pid)].ppid
        return parent if parent in self.stats else None

    def _grow(self) -> None:
        self._below = {}
        for pid, stat in self.stats.items():
            self._below.setdefault(stat.ppid, []).append(pid)


def same(one: Seat | None, other: Seat) -> bool:
    """Whether two processes are in one place of one job."""
    names = ("kind", "job", "rank")
    return one is not None and all(one[name] == other[name] for name in names)


_PROGRAMS = {
    "torchrun": "torchrun", "accelerate": "accelerate", "deepspeed": "deepspeed",
    "mpirun": "mpirun", "mpiexec": "mpirun", "orted": "mpirun", "prted": "mpirun",
    "prterun": "mpirun", "hydra_pmi_proxy": "mpirun", "slurmstepd": "srun",
}  # fmt: skip
_MODULES = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.launch": "deepspeed", "deepspeed.launcher.runner": "deepspeed",
}  # fmt: skip
_INTERPRETER = re.compile(r"^(?:python|pypy)[\d.]*$")
_WORDS = 16
"""Of a command are looked at; the program comes first."""

_MOST = 65535


def kind(argv: Sequence[bytes]) -> str:
    """Name the launcher that a command line is of; "" for anything else."""
    words = [word.decode("utf-8", "replace") for word in argv[:_WORDS]]
    if not words:
        return ""
    first = os.path.basename(words[0])
    if not _INTERPRETER.match(first):
        return _PROGRAMS.get(first.partition(":")[0], "")
    for at, word in enumerate(words[1:], 1):
        if word == "-m":
            return _MODULES.get(words[at + 1], "") if at + 1 < len(words) else ""
        if not word.startswith("-"):
            return _PROGRAMS.get(os.path.basename(word), "")
    return ""


def told(argv: Sequence[bytes]) -> dict[str, Any]:
    """Return `job` and `ranks` as its own options say, for one that has no ranks yet or any more.

    Unknown is "" and None: torchrun reads both from files and variables too.
    """
    given = _options(argv)
    run_id = given.get("rdzv-id", "")
    meets = given.get("rdzv-endpoint", "")
    if given.get("master-port"):
        meets = f"{given.get('master-addr', '')}:{given['master-port']}"
    ranks = given.get("nproc-per-node", "")
    return {
        "job": clean(run_id if run_id not in ("", "none") else meets),
        "ranks": int(ranks) if ranks.isdigit() and int(ranks[:9]) <= _MOST else None,
    }


def _options(argv: Sequence[bytes]) -> dict[str, str]:
    """Read `--name value` and `--name=value`, with dashes or underscores, up to the script."""
    words = [word.decode("utf-8", "replace") for word in argv[:256]]
    found: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""]):  # noqa: B905 (Python 3.8)
        if word.endswith(".py"):
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found.setdefault(name.replace("_", "-"), value if equals else following)
    return found


_NAMES = {
    # By launcher: rank, rank on this node, how many, how many on this node.
    "torch": (b"RANK", b"LOCAL_RANK", b"WORLD_SIZE", b"LOCAL_WORLD_SIZE"),
    "mpi": (
        b"OMPI_COMM_WORLD_RANK", b"OMPI_COMM_WORLD_LOCAL_RANK",
        b"OMPI_COMM_WORLD_SIZE", b"OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "pmi": (b"PMI_RANK", b"MPI_LOCALRANKID", b"PMI_SIZE", b"MPI_LOCALNRANKS"),
    "slurm": (b"SLURM_PROCID", b"SLURM_LOCALID", b"SLURM_STEP_NUM_TASKS", b""),
}  # fmt: skip
_MOST_RANKS, _MOST_LOCAL, _MOST_RESTARTS = 1 << 20, 65535, 1 << 31
_NO_RUN_ID = (b"", b"none")
"""What torchrun calls every job that was given no name."""

_HERE = ("localhost", "ip6-localhost", "::1", "[::1]")


def read_seat(environ: Environ) -> Seat | None:
    """Return its `kind`, `job`, `rank` and so on; None for one that is no rank of a job of many.

    torch's own variables win: under srun or mpirun every process has those of these too.
    """
    for kind, names in _NAMES.items():
        rank, local, world, here = (
            _number(environ.get(name), most)
            for name, most in zip(  # noqa: B905 (Python 3.8)
                names, (_MOST_LOCAL, _MOST_LOCAL, _MOST_RANKS, _MOST_LOCAL)
            )
        )
        if rank is None or not world or (kind != "torch" and world == 1):
            continue
        return {
            "kind": kind,
            "job": job(environ),
            "rank": rank,
            "local_rank": local,
            "world_size": world,
            "local_world_size": here,
            "restarts": _number(environ.get(b"TORCHELASTIC_RESTART_COUNT"), _MOST_RESTARTS),
            "master": master(environ),
        }
    return None


def job(environ: Environ) -> str:
    """Return what all ranks of a job share; "" where they share no name that we know.

    A master on the loopback serves this node alone, so another node's is another job.
    """
    run_id = environ.get(b"TORCHELASTIC_RUN_ID", b"")
    if run_id not in _NO_RUN_ID:
        return clean(run_id)
    meets = master(environ)
    if meets:
        address, _, port = meets.rpartition(":")
        loopback = address in _HERE or address.startswith("127.")
        return clean(os.uname().nodename) + ":" + port if loopback else meets
    number, step = environ.get(b"SLURM_JOB_ID"), environ.get(b"SLURM_STEP_ID")
    if number:
        return clean(b"slurm " + number + (b"." + step if step else b""))
    return clean(environ.get(b"PMIX_NAMESPACE", b""))


def master(environ: Environ) -> str:
    """Return where its ranks meet, "address:port"; "" where the environment does not say."""
    address, port = environ.get(b"MASTER_ADDR"), environ.get(b"MASTER_PORT")
    return clean(address + b":" + port) if address and port else ""


def _number(text: bytes | None, most: int) -> int | None:
    """Return a whole number within bounds; None for anything else."""
    if not text or not text.isdigit() or len(text) > len(str(most)):
        return None
    number = int(text)
    return number if number <= most else None


_HELPERS = (b"resource_tracker", b"semaphore_tracker")
"""Of Python's multiprocessing: they compute nothing."""

_ENDED = "ZX"


class People:
    """All processes but our own; `only`: these, what is below them, and of a rank its launcher's.

    Reading a process's environment or command can hang, where a thread of it hangs in the kernel.
    """

    def __init__(self, run_pid: int, only: Collection[int], care: Care) -> None:
        self._care = care
        every = everyone()
        ours = {run_pid, *procfs.below(run_pid, every), *ancestors(run_pid)}
        self.absent = [pid for pid in only if pid not in every]
        self.kin = Kin(
            {pid: one for pid, one in every.items() if not one.kernel and pid not in ours}
        )
        self.environs: dict[int, dict[bytes, bytes]] = {}
        self.seats: dict[int, Seat] = {}
        self.denied: list[int] = []
        """Whose environment this login may not read."""
        self._argv: dict[int, list[bytes]] = {}
        if only:
            self._narrow([pid for pid in only if pid in self.kin.stats])
        for pid in self.kin.stats:
            self._read(pid)
        self.kin.join(self.seats)

    def _narrow(self, only: list[int]) -> None:
        """Keep these processes, what is below them, and the other ranks of a rank's launcher."""
        meant = {pid for each in only for pid in (each, *self.kin.below(each))}
        jobs, kept = set(), set(meant)
        for pid in only:
            top = self._launcher_of(pid)
            if top is not None:
                jobs.add(self.seats[pid]["job"])
                kept |= {top, *self.kin.below(top)}
        for pid in kept - meant:
            self._read(pid)
        others = {pid for pid in kept - meant if pid in self.seats}
        self.kin.keep(kept - {pid for pid in others if self.seats[pid]["job"] not in jobs})
        self.seats = {pid: seat for pid, seat in self.seats.items() if pid in self.kin.stats}

    def _launcher_of(self, pid: int) -> int | None:
        """Return what started a rank: its nearest ancestor in another place; None for no rank."""
        self._read(pid)
        mine = self.seats.get(pid)
        if mine is None:
            return None
        for one in self.kin.above(pid):
            self._read(one)
            if not same(self.seats.get(one), mine):
                return one if one > 1 else None
        return None

    def _read(self, pid: int) -> None:
        if pid in self.environs or pid in self.denied or self.ended(pid) or self.stuck(pid):
            return
        self._care.mark(pid)
        block = procfs.environ(pid)
        if block is None:
            if os.path.exists(f"/proc/{pid}"):
                self.denied.append(pid)
            return
        self.environs[pid] = procfs.variables(block)
        seat = read_seat(self.environs[pid])
        if seat:
            self.seats[pid] = seat

    def ended(self, pid: int) -> bool:
        """Whether it is a zombie."""
        return self.kin.stats[pid].state in _ENDED

    def stuck(self, pid: int) -> bool:
        """Whether reading its memory would hang."""
        return pid in self.kin.stats and self._care.untouchable(self.kin.stats[pid])

    def command(self, pid: int) -> list[bytes]:
        """Return its command line; [] where it has none or must not be read."""
        if pid not in self._argv:
            self._care.mark(pid)
            self._argv[pid] = [] if self.stuck(pid) else procfs.argv(pid)
        return self._argv[pid]

    def launcher(self, pid: int) -> str:
        """Name the kind of launcher that it is; "" for anything else."""
        return kind(self.command(pid))

    def is_python(self, pid: int) -> bool:
        """Whether it runs Python, other than a helper of multiprocessing's own."""
        command = self.command(pid)
        try:
            program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        except OSError:
            program = os.path.basename(clean((command or [b""])[0]))
        helper = any(name in word for word in command for name in _HELPERS)
        return program.startswith(("python", "pypy")) and not helper
