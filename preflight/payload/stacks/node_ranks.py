"""Finds the ranks of a node and their launchers, in one pass over its processes."""

from __future__ import annotations

import os
import time
from typing import Any, Sequence

from probe import guard, procfs
from probe.node_files import clean
from probe.processes import Care
from probe.procfs import Users

from . import Document, process_table, rank_dumps, ras_client
from .process_table import Identity, ProcessTable

MOST_WORKERS = 8
_DUMP_PREFIXES = (b"TORCH_FR_DUMP_TEMP_FILE", b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DUMPS = "/tmp/nccl_trace_rank_"  # noqa: S108 (torch's own path; the file's owner is checked)
_LATER_DUMPS = ".cache/torch/comm_lib_trace_rank_"
"""Below the home, with torch 2.9 and later."""

_users = Users(patient=False)
"""Without directories: one that hangs would look like a process that hangs."""


def describe(table: ProcessTable, pid: int, identity: Identity | None) -> Document:
    """Return a rank's constant fields, and what the readers need."""
    stat = table.stats[pid]
    environ = table.environs.get(pid, {})
    uid = procfs.uid(pid)
    visible = environ.get(b"CUDA_VISIBLE_DEVICES")
    return {
        **{name: value for name, value in (identity or {}).items() if name != "kind"},
        "pid": pid,
        "start": stat.start,
        "seen": stat.state,
        "parent": stat.ppid,
        "age_s": round(stat.age_s(), 3),
        "began_s": time.time() - stat.age_s(),
        "user": "?" if uid is None else clean(_users.name(uid)),
        "uid": uid,
        "inner_pid": procfs.inner_pid(pid),
        "python": table.is_python(pid),
        "stuck": table.stuck(pid),
        "visible": None if visible is None else clean(visible),
        "bins": bins(table, pid),
        "socket": _socket(environ),
        "ras": ras_client.address(environ),
        "dumps": [] if identity is None else _dumps(pid, int(identity["rank"]), environ),
        "workers": _workers(table, pid),
    }


def bins(table: ProcessTable, pid: int) -> list[str]:
    """Return the folders of programs of a process's Python."""
    environ = table.environs.get(pid, {})
    program = os.fsdecode((table.command(pid) or [b""])[0])
    names = (b"VIRTUAL_ENV", b"CONDA_PREFIX")
    paths = [os.path.dirname(program)]
    paths += [os.path.join(os.fsdecode(environ[name]), "bin") for name in names if name in environ]
    paths.append(os.path.dirname(procfs.link(pid, "exe")))
    return [path for path in dict.fromkeys(paths) if path.startswith("/") and _travels(path)]


def _travels(path: str) -> bool:
    """Whether a path that a process chose can be sent as JSON unchanged."""
    return path.isprintable()


def _workers(table: ProcessTable, pid: int) -> list[int]:
    """Return the Python processes that a rank has started, usually its data loader's."""
    descendants = table.children(pid)
    readable = [child for child in descendants if not (table.ended(child) or table.stuck(child))]
    return [child for child in readable if table.is_python(child)][:MOST_WORKERS]


def _dumps(pid: int, rank: int, environ: dict[bytes, bytes]) -> list[str]:
    """Return where torch writes its flight recorder's dump: the set path, or the defaults."""
    prefixes: Sequence[str] = [os.fsdecode(environ[n]) for n in _DUMP_PREFIXES if environ.get(n)]
    if not prefixes:
        home = os.fsdecode(environ.get(b"HOME", b"/nonexistent"))
        prefixes = (_DUMPS, os.path.join(home, _LATER_DUMPS))
    folder = procfs.link(pid, "cwd") or "/"
    paths = [os.path.join(folder, f"{prefix}{rank}") for prefix in dict.fromkeys(prefixes)]
    return [path for path in paths if _travels(path)]


def _socket(environ: dict[bytes, bytes]) -> str:
    """Return the path of torch's worker server; "" if the rank has none."""
    path = os.fsdecode(environ.get(rank_dumps.VARIABLE, b""))
    return path if path.startswith("/") and _travels(path) else ""


_KINDS = ("torchrun", "accelerate", "deepspeed")
"""Reported without a rank, too: they wait for other nodes, or their ranks have ended."""

_INIT = 1
"""Its children are orphans, usually of an ended rank."""

_JOB_FIELDS = ("job", "world_size", "local_world_size", "restarts", "master")


def find_launchers(table: ProcessTable, ranks: list[Document]) -> list[Document]:
    """Return a `Launcher` for each parent of ranks, and for each launcher without ranks."""
    launchers: dict[int, Document] = {}
    for rank in ranks:
        parent, kind = starter(table, rank["pid"])
        if parent is not None:
            launchers.setdefault(parent, {"pid": parent, "kind": kind, "job": rank.get("job", "")})
    for pid in table.stats:
        kind = table.launcher(pid)
        if kind not in _KINDS or pid in launchers or table.ended(pid):
            continue
        if not set(table.descendants(pid)) & launchers.keys():
            job = process_table.job_of_options(table.command(pid))
            launchers[pid] = {"pid": pid, "kind": kind, "job": job}
    for pid, launcher in launchers.items():
        launcher["children"] = sorted(table.children(pid))[:256]
    return list(launchers.values())


def starter(table: ProcessTable, pid: int) -> tuple[int | None, str]:
    """Return the launcher of a rank and its kind; (None, "") if there is none."""
    for ancestor in table.ancestors_of(pid):
        if table.launcher(ancestor):
            return ancestor, table.launcher(ancestor)
    parent = table.parent_of_rank(pid)
    elastic = b"TORCHELASTIC_RUN_ID" in table.environs.get(pid, {})
    if elastic and parent not in (None, _INIT) and table.is_python(parent):
        # torchrun inside a program of the user: its command line does not show it.
        return parent, "torchrun"
    return None, ""


def silent_children(
    table: ProcessTable, launcher: Document, ranks: list[Document]
) -> list[Document]:
    """Return children of a launcher that are zombies, or whose memory cannot be read.

    Their environment is not readable; if as many local ranks are missing, they are those, in order.
    """
    if launcher["kind"] != "torchrun":
        return []
    unknown = set(launcher["children"]) - {rank["pid"] for rank in ranks}
    silent = sorted(pid for pid in unknown if table.ended(pid) or table.stuck(pid))
    peers = [rank for rank in ranks if "rank" in rank]
    peers = [rank for rank in peers if starter(table, rank["pid"])[0] == launcher["pid"]]
    free = _free_local_ranks(peers, len(silent))
    return [_describe_silent(table, *pair, peers) for pair in zip(silent, free)]  # noqa: B905 (3.8)


def _free_local_ranks(ranks: list[Document], count: int) -> list[int | None]:
    """Return the missing local ranks, if there are exactly `count` of them."""
    if ranks and ranks[0].get("local_world_size"):
        taken = {rank["local_rank"] for rank in ranks}
        free = [number for number in range(ranks[0]["local_world_size"]) if number not in taken]
        if len(free) == count:
            return list(free)
    return [None] * count


def _describe_silent(
    table: ProcessTable, pid: int, local_rank: int | None, ranks: list[Document]
) -> Document:
    row = describe(table, pid, None)
    if ranks:
        peer = ranks[0]
        row.update({name: peer.get(name) for name in _JOB_FIELDS})
        if local_rank is not None and peer.get("local_rank") is not None:
            rank = peer["rank"] - peer["local_rank"] + local_rank
            row.update(local_rank=local_rank, rank=rank)
    return row


MOST_RANKS = 512
MOST_LAUNCHERS = 128


def find(run_pid: int, wanted: list[int], care: Care) -> Document:
    """Return `ranks`, `launchers`, the number of `hidden` ranks, the `absent` pids, and `others`.

    `others`: a Python process of each user whose processes this login may not read.

    `wanted`: only these processes, their descendants, and the other ranks of a rank's launcher;
    empty for all processes of this node but our own.
    """
    table = ProcessTable(run_pid, wanted, care)
    pids = _choose(table, _rank_processes(table), MOST_RANKS)
    ranks = [describe(table, pid, table.identities[pid]) for pid in pids]
    if not ranks:
        pids = _choose(table, _possible_ranks(table, wanted), MOST_RANKS)
        ranks = [describe(table, pid, None) for pid in pids]
    launchers = find_launchers(table, ranks)
    for launcher in launchers:
        silent = silent_children(table, launcher, ranks)
        ranks = [row for row in ranks if not _is_left_behind(table, row, silent + ranks)] + silent
    launcher_pids = _choose(table, [launcher["pid"] for launcher in launchers], MOST_LAUNCHERS)
    unread = [pid for pid in table.denied if table.is_python(pid)]
    return {
        "ranks": ranks[:MOST_RANKS],
        "launchers": [launcher for launcher in launchers if launcher["pid"] in launcher_pids],
        "hidden": _hidden(table, unread),
        "absent": table.absent,
        "others": list({table.allowances.user(pid): pid for pid in unread}.values()),
    }


def _choose(table: ProcessTable, pids: list[int], limit: int) -> list[int]:
    """Return `limit` pids, of each user in turn: no user can crowd out the others."""
    chosen = set(table.allowances.in_turn(pids)[:limit])
    return [pid for pid in pids if pid in chosen]


def _is_left_behind(table: ProcessTable, rank: Document, ranks: list[Document]) -> bool:
    """Whether it is an orphan with the identity of another rank: a worker left behind."""
    if starter(table, rank["pid"])[0] is not None:
        return False
    twins = [other for other in ranks if _identity(other) == _identity(rank) and other is not rank]
    return any(starter(table, other["pid"])[0] is not None for other in twins)


def _identity(rank: Document) -> tuple[Any, Any]:
    return rank.get("job"), rank.get("rank", rank["pid"])


def _rank_processes(table: ProcessTable) -> list[int]:
    """Return one process for each rank: its workers and its shell have the same variables.

    A launcher may have variables of a rank, too, from Slurm or, for the node, from a Kubernetes
    job. It is no rank. Neither is another program that Slurm or MPI started, unless it holds a GPU.
    """
    pids = []
    for root in table.roots:
        members = [pid for pid in table.members(root) if not _launches(table, pid)]
        pythons = [pid for pid in members if table.is_python(pid)]
        if pythons:
            pids.append(pythons[0])
        elif members and _may_be_rank(table, members[0]):
            pids.append(members[0])
        else:
            pids += [pid for pid in members if _has_gpu(table, pid)][:1]
    return pids


def _may_be_rank(table: ProcessTable, pid: int) -> bool:
    """Whether a program that is no Python may be a rank of torch.

    Below a torchrun it may. Without one, a dead rank has left it behind, as wandb-core or a sleep.
    """
    elastic = b"TORCHELASTIC_RUN_ID" in table.environs.get(pid, {})
    is_left = elastic and starter(table, pid)[0] is None
    return bool(table.identities[pid]["kind"] == "torch") and not is_left


def _launches(table: ProcessTable, pid: int) -> bool:
    return any(table.launcher(member) for member in (pid, *table.descendants(pid)))


def _possible_ranks(table: ProcessTable, wanted: list[int]) -> list[int]:
    """Return processes that may be ranks: those in `wanted`, or Python processes that hold GPUs."""
    if not wanted:
        holders = {pid for pid in table.environs if table.is_python(pid) and _has_gpu(table, pid)}
        return sorted(pid for pid in holders if not holders.intersection(table.ancestors_of(pid)))
    pids: list[int] = []
    for pid in wanted:
        if pid in table.stats:
            pythons = [at for at in table.children(pid) if table.is_python(at)]
            if not table.launcher(pid):
                # Only those that multiprocessing's `spawn`, which sets no variables, started.
                pythons = [at for at in pythons if b"spawn_main" in b" ".join(table.command(at))]
            pids += pythons or [pid]
    return list(dict.fromkeys(pids))


def _has_gpu(table: ProcessTable, pid: int) -> bool:
    opened = table.allowances.open_files(pid)
    return opened is not None and opened.gpu


def _hidden(table: ProcessTable, unread: list[int]) -> int:
    """Count other users' Python processes that a launcher started: probably ranks."""
    parents = (table.stats[pid].ppid for pid in unread)
    return sum(bool(table.launcher(parent)) for parent in parents)


class Patience:
    """The deadline of all steps, and the `problems` so far."""

    def __init__(self, until: float) -> None:
        self.began = time.monotonic()
        self.until = until
        self.problems: list[str] = []
        self.stuck: set[int] = set()
        """Processes at which a reader hung: `processes.Patient`."""

    def within(self, seconds: float) -> float:
        """Return the deadline (monotonic) of a step that may take `seconds`."""
        return min(self.until, time.monotonic() + seconds)

    def left_s(self) -> float:
        """Return the seconds until the deadline of all."""
        return max(0.0, self.until - time.monotonic())

    def complain(self, problem: str) -> None:
        """Add a line to `problems`, once."""
        if problem not in self.problems:
            self.problems.append(problem)

    def sleep_until(self, moment: float) -> None:
        """Sleep until `moment` (monotonic), but not beyond the deadline of all."""
        time.sleep(max(0.0, min(self.until, moment) - time.monotonic()))

    def answer_of(self, subject: str, child: guard.Child, seconds: float) -> Any:
        """Return the answer of a guarded reader; on failure None, and a line in `problems`."""
        return guard.answer_of(subject, child, self.within(seconds), self.complain)
