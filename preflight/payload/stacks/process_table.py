"""Reads the processes of a node with their commands and environments, once and safely."""

from __future__ import annotations

import os
import re
from typing import Collection, Iterator, Mapping, Sequence

from probe import procfs
from probe.node_files import clean, whole_number
from probe.processes import DEEPEST, Allowances, Care, ancestors

from . import Document

Environ = Mapping[bytes, bytes]
Identity = Document


def is_same_rank(left: Identity | None, right: Identity) -> bool:
    """Whether two processes have the same rank of the same job."""
    names = ("kind", "job", "rank")
    return left is not None and all(left[name] == right[name] for name in names)


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
"""Words of a command to read: the program comes first."""


def kind(argv: Sequence[bytes]) -> str:
    """Return the kind of launcher of a command line; "" for anything else."""
    words = [word.decode("utf-8", "replace") for word in argv[:_WORDS]]
    if not words:
        return ""
    program = os.path.basename(words[0])
    if not _INTERPRETER.match(program):
        return _PROGRAMS.get(program.partition(":")[0], "")
    for at, word in enumerate(words[1:], 1):
        if word == "-m":
            return _MODULES.get(words[at + 1], "") if at + 1 < len(words) else ""
        if not word.startswith("-"):
            return _PROGRAMS.get(os.path.basename(word), "")
    return ""


def job_of_options(argv: Sequence[bytes]) -> str:
    """Return the id of its job by a launcher's options, if it has no ranks now.

    "" if not known: torchrun also reads it from files and variables.
    """
    options = _options(argv)
    run_id = options.get("rdzv-id", "")
    rendezvous = options.get("rdzv-endpoint", "")
    if options.get("master-port"):
        rendezvous = f"{options.get('master-addr', '')}:{options['master-port']}"
    return clean(run_id if run_id not in ("", "none") else rendezvous)


def _options(argv: Sequence[bytes]) -> dict[str, str]:
    """Read `--name value` and `--name=value`, with dashes or underscores, up to the script."""
    words = [word.decode("utf-8", "replace") for word in argv[:256]]
    options: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""]):  # noqa: B905 (Python 3.8)
        if word.endswith(".py"):
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            options.setdefault(name.replace("_", "-"), value if equals else following)
    return options


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
"""torchrun's run ids of a job without a name."""

_LOOPBACK = ("localhost", "ip6-localhost", "::1", "[::1]")


def read_identity(environ: Environ) -> Identity | None:
    """Return its `kind`, `job`, `rank` and so on; None if it is no rank of a job of several.

    torch's variables come first: under srun or mpirun every process has theirs, too.
    """
    for kind, names in _NAMES.items():
        limits = (_MOST_LOCAL, _MOST_LOCAL, _MOST_RANKS, _MOST_LOCAL)
        rank, local, world, local_world = map(_number, map(environ.get, names), limits)
        if rank is None or not world or (kind != "torch" and world == 1):
            continue
        return {
            "kind": kind,
            "job": job(environ),
            "rank": rank,
            "local_rank": local,
            "world_size": world,
            "local_world_size": local_world,
            "restarts": _number(environ.get(b"TORCHELASTIC_RESTART_COUNT"), _MOST_RESTARTS),
            "master": master(environ),
        }
    return None


def job(environ: Environ) -> str:
    """Return a job's id, which all its ranks share; "" if not known.

    A master on the loopback serves only this node, so another node's is another job.
    """
    run_id = environ.get(b"TORCHELASTIC_RUN_ID", b"")
    if run_id not in _NO_RUN_ID:
        return clean(run_id)
    rendezvous = master(environ)
    if rendezvous:
        address, _, port = rendezvous.rpartition(":")
        loopback = address in _LOOPBACK or address.startswith("127.")
        return clean(os.uname().nodename) + ":" + port if loopback else rendezvous
    number, step = environ.get(b"SLURM_JOB_ID"), environ.get(b"SLURM_STEP_ID")
    if number:
        return clean(b"slurm " + number + (b"." + step if step else b""))
    return clean(environ.get(b"PMIX_NAMESPACE", b""))


def master(environ: Environ) -> str:
    """Return its master, "address:port"; "" without the variables."""
    address, port = environ.get(b"MASTER_ADDR"), environ.get(b"MASTER_PORT")
    return clean(address + b":" + port) if address and port else ""


def _number(text: bytes | None, limit: int) -> int | None:
    """Return a whole number within bounds; None for anything else."""
    number = whole_number(text or b"")
    return number if number is not None and number <= limit else None


_HELPERS = (b"resource_tracker", b"semaphore_tracker")
"""Helpers of Python's multiprocessing, which compute nothing."""


class ProcessTable:
    """All processes but our own; with `only`, these, their descendants, and their jobs' ranks here.

    Reading a process's environment or command can hang if one of its threads hangs in the kernel.
    """

    def __init__(self, run_pid: int, only: Collection[int], care: Care) -> None:
        self._care = care
        self.allowances = Allowances()
        everyone = care.everyone()
        skip = {run_pid, *procfs.descendants(run_pid, everyone), *ancestors(run_pid)}
        self.absent = [pid for pid in only if pid not in everyone]
        stats = {pid: stat for pid, stat in everyone.items() if not stat.kernel and pid not in skip}
        self.stats = stats
        self._children = procfs.children(stats)
        self._root_of: dict[int, int] = {}
        """The topmost process of the rank that a process belongs to."""
        self.environs: dict[int, dict[bytes, bytes]] = {}
        self.identities: dict[int, Identity] = {}
        self.denied: list[int] = []
        """Processes whose environment this login may not read."""
        self._argv: dict[int, list[bytes]] = {}
        if only:
            self._narrow([pid for pid in only if pid in self.stats])
        for pid in self.stats:
            self._read(pid)
        for pid, identity in self.identities.items():  # same rank, and below each other: one rank
            line = (pid, *self.ancestors_of(pid))
            equals = [at for at in line if is_same_rank(self.identities.get(at), identity)]
            self._root_of[pid] = equals[-1]
        self.roots = sorted(set(self._root_of.values()), key=lambda pid: self.stats[pid].start)
        """The topmost process of each rank."""

    def _narrow(self, only: list[int]) -> None:
        """Keep these processes, their descendants, and the other ranks of their launchers."""
        chosen = {pid for root in only for pid in (root, *self.descendants(root))}
        jobs, pids = set(), set(chosen)
        for pid in only:
            launcher = self._launcher_of(pid)
            if launcher is not None:
                jobs.add(self.identities[pid]["job"])
                pids |= {launcher, *self.descendants(launcher)}
        for pid in pids - chosen:
            self._read(pid)
        others = {pid for pid in pids - chosen if pid in self.identities}
        pids -= {pid for pid in others if self.identities[pid]["job"] not in jobs}
        self.stats = {pid: stat for pid, stat in self.stats.items() if pid in pids}
        self._children = procfs.children(self.stats)
        self.identities = {pid: self.identities[pid] for pid in self.identities if pid in pids}

    def _launcher_of(self, pid: int) -> int | None:
        """Return a rank's launcher: its nearest ancestor of another rank; None if it is no rank."""
        self._read(pid)
        identity = self.identities.get(pid)
        if identity is None:
            return None
        for ancestor in self.ancestors_of(pid):
            self._read(ancestor)
            if not is_same_rank(self.identities.get(ancestor), identity):
                return ancestor if ancestor > 1 else None
        return None

    def _read(self, pid: int) -> None:
        if pid in self.environs or pid in self.denied or self.ended(pid) or self.stuck(pid):
            return
        self._care.mark(pid)
        block = self.allowances.environ(pid)
        if block is None:
            if os.path.exists(f"/proc/{pid}"):
                self.denied.append(pid)
            return
        self.environs[pid] = procfs.variables(block)
        if identity := read_identity(self.environs[pid]):
            self.identities[pid] = identity

    def ended(self, pid: int) -> bool:
        """Whether it is a zombie."""
        return self.stats[pid].state in "ZX"

    def stuck(self, pid: int) -> bool:
        """Whether reading its memory would hang."""
        return pid in self.stats and self._care.untouchable(self.stats[pid])

    def command(self, pid: int) -> list[bytes]:
        """Return its command line; [] if it has none or must not be read."""
        if pid not in self._argv:
            self._care.mark(pid)
            self._argv[pid] = [] if self.stuck(pid) else procfs.argv(pid)
        return self._argv[pid]

    def launcher(self, pid: int) -> str:
        """Return its kind of launcher; "" for anything else."""
        return kind(self.command(pid))

    def is_python(self, pid: int) -> bool:
        """Whether it runs Python, and is not a helper of multiprocessing."""
        command = self.command(pid)
        program = os.path.basename(procfs.link(pid, "exe") or clean((command or [b""])[0]))
        helper = any(name in word for word in command for name in _HELPERS)
        return program.startswith(("python", "pypy")) and not helper

    def children(self, pid: int) -> list[int]:
        """Return its children."""
        return self._children.get(pid, [])

    def descendants(self, pid: int) -> list[int]:
        """Return all its descendants, the nearest first."""
        return procfs.generations(pid, self._children)

    def ancestors_of(self, pid: int) -> Iterator[int]:
        """Yield its ancestors, the nearest first."""
        for _ in range(DEEPEST):
            if pid not in self.stats:
                return
            pid = self.stats[pid].ppid
            if pid in self.stats:
                yield pid

    def members(self, root: int) -> list[int]:
        """Return the processes of a root's rank, the root first, then the nearest."""
        return [pid for pid in (root, *self.descendants(root)) if self._root_of.get(pid) == root]

    def parent_of_rank(self, pid: int) -> int | None:
        """Return the parent of its rank's topmost process; None if that is not known."""
        parent = self.stats[self._root_of.get(pid, pid)].ppid
        return parent if parent in self.stats else None
