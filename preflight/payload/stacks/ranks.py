"""Finds the ranks of a node and who started them, among all of its processes, by one pass."""

from __future__ import annotations

import contextlib
import os
import time

from probe import guard, procfs, redact
from probe.procfs import Users
from probe.text import clean

from . import processes
from .processes import People

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from probe.processes import Care

    from .processes import Seat

    Told = dict[str, Any]


MOST_WORKERS = 8
_DUMP_PREFIXES = (b"TORCH_FR_DUMP_TEMP_FILE", b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DUMPS = "/tmp/nccl_trace_rank_"  # noqa: S108 (torch's own place; who owns the file is looked at)
_LATER_DUMPS = ".cache/torch/comm_lib_trace_rank_"
"""Below the home: torch 2.9 and later."""

_users = Users(patient=False)
"""A directory that hangs must not look like a process that does: it is asked elsewhere."""


def describe(people: People, pid: int, seat: Seat | None) -> Told:
    """Return what stays the same between two looks, and what the readers need to know."""
    stat = people.kin.stats[pid]
    environ = people.environs.get(pid, {})
    uid = procfs.uid(pid)
    visible = environ.get(b"CUDA_VISIBLE_DEVICES")
    words = [clean(word) for word in people.command(pid)[:64]]
    return {
        **{name: value for name, value in (seat or {}).items() if name != "kind"},
        "pid": pid,
        "start": stat.start,
        "parent": stat.ppid,
        "age_s": round(stat.age_s(), 3),
        "user": "?" if uid is None else clean(_users.name(uid)),
        "uid": uid,
        "program": clean(" ".join(redact.redacted(redact.program(words)))),
        "python": people.is_python(pid),
        "stuck": people.stuck(pid),
        "visible": None if visible is None else clean(visible),
        "bins": bins(people, pid),
        "dumps": [] if seat is None else _dumps(pid, int(seat["rank"]), environ),
        "workers": _workers(people, pid),
    }


def bins(people: People, pid: int) -> list[str]:
    """Return the folders in which the Python of a process keeps its programs."""
    environ = people.environs.get(pid, {})
    first = os.fsdecode((people.command(pid) or [b""])[0])
    names = (b"VIRTUAL_ENV", b"CONDA_PREFIX")
    found = [os.path.dirname(first)]
    found += [os.path.join(os.fsdecode(environ[name]), "bin") for name in names if name in environ]
    with contextlib.suppress(OSError):
        found.append(os.path.dirname(os.readlink(f"/proc/{pid}/exe")))
    return [one for one in dict.fromkeys(found) if one.startswith("/") and _travels(one)]


def _travels(path: str) -> bool:
    """Whether a name that a process gave itself can go through JSON as it is."""
    return path.isprintable()


def _workers(people: People, pid: int) -> list[int]:
    """Return the Pythons that a rank has started for itself: its data loader's, as a rule."""
    mine = [
        one
        for one in people.kin.of(pid)
        if not people.ended(one) and not people.stuck(one) and people.is_python(one)
    ]
    return mine[:MOST_WORKERS]


def _dumps(pid: int, rank: int, environ: dict[bytes, bytes]) -> list[str]:
    """Return where torch would leave its flight recorder's dump: what is set, else its defaults."""
    prefixes: Sequence[str] = [os.fsdecode(environ[n]) for n in _DUMP_PREFIXES if environ.get(n)]
    if not prefixes:
        home = os.fsdecode(environ.get(b"HOME", b"/nonexistent"))
        prefixes = (_DUMPS, os.path.join(home, _LATER_DUMPS))
    try:
        folder = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        folder = "/"
    paths = [os.path.join(folder, f"{prefix}{rank}") for prefix in dict.fromkeys(prefixes)]
    return [path for path in paths if _travels(path)]


_KINDS = ("torchrun", "accelerate", "deepspeed")
"""Told without a rank too: they wait for other nodes, or their ranks have ended."""

_INIT = 1
"""Whose children are orphans: what an ended rank has left, as a rule."""

_SHARED = ("job", "world_size", "local_world_size", "restarts", "master")


def find_launchers(people: People, ranks: list[Told]) -> list[Told]:
    """Return a `Launcher` for each parent of ranks, and for each that has none."""
    found: dict[int, Told] = {}
    for rank in ranks:
        above, kind = starter(people, rank["pid"])
        if above is not None:
            here = rank.get("local_world_size")
            told = {"pid": above, "kind": kind, "job": rank.get("job", ""), "ranks": here}
            found.setdefault(above, told)
    for pid in people.kin.stats:
        kind = people.launcher(pid)
        if kind not in _KINDS or pid in found or people.ended(pid):
            continue
        if not set(people.kin.below(pid)) & found.keys():
            found[pid] = {"pid": pid, "kind": kind, **processes.told(people.command(pid))}
    for pid, launcher in found.items():
        launcher["python"] = people.is_python(pid)
        launcher["bins"] = bins(people, pid)
        launcher["children"] = sorted(people.kin.of(pid))[:256]
    return list(found.values())


def starter(people: People, pid: int) -> tuple[int | None, str]:
    """Return the launcher of a rank and its kind; (None, "") where none is to be seen."""
    for above in people.kin.above(pid):
        if people.launcher(above):
            return above, people.launcher(above)
    parent = people.kin.parent_of_seat(pid)
    elastic = b"TORCHELASTIC_RUN_ID" in people.environs.get(pid, {})
    if elastic and parent not in (None, _INIT) and people.is_python(parent):
        # Within a program of the user's own: its command line does not show it.
        return parent, "torchrun"
    return None, ""


def silent_children(people: People, launcher: Told, ranks: list[Told]) -> list[Told]:
    """Return its children that have ended unnoticed, or whose memory cannot be read.

    Their environment is not to be had; where as many local ranks are missing, it is they, in order.
    """
    if launcher["kind"] != "torchrun":
        return []
    known = {rank["pid"] for rank in ranks}
    mute = [
        pid
        for pid in launcher["children"]
        if pid not in known and (people.ended(pid) or people.stuck(pid))
    ]
    seated = [
        rank
        for rank in ranks
        if "rank" in rank and starter(people, rank["pid"])[0] == launcher["pid"]
    ]
    places = _places(seated, len(mute))
    return [_told(people, pid, seated, place) for pid, place in zip(mute, places)]  # noqa: B905 (3.8)


def _places(seated: list[Told], wanted: int) -> list[int | None]:
    """Return the local ranks that nobody has, if they are exactly so many."""
    if seated and seated[0].get("local_world_size"):
        taken = {rank["local_rank"] for rank in seated}
        free = [one for one in range(seated[0]["local_world_size"]) if one not in taken]
        if len(free) == wanted:
            return list(free)
    return [None] * wanted


def _told(people: People, pid: int, seated: list[Told], place: int | None) -> Told:
    its = describe(people, pid, None)
    if seated:
        like = seated[0]
        its.update({name: like.get(name) for name in _SHARED})
        if place is not None and like.get("local_rank") is not None:
            its.update(local_rank=place, rank=like["rank"] - like["local_rank"] + place)
    return its


MOST = 512
MOST_LAUNCHERS = 128


def find(run_pid: int, wanted: list[int], care: Care) -> Told:
    """Return `ranks`, `launchers`, how many are `hidden`, and which of `wanted` are `absent`.

    `wanted`: only these processes, what is below them, and of a rank the others that its launcher
    started; empty for all of this node but our own.
    """
    people = People(run_pid, wanted, care)
    ranks = [describe(people, pid, people.seats[pid]) for pid in _seated(people)]
    if not ranks:
        ranks = [describe(people, pid, None) for pid in _without_seats(people, wanted)]
    launchers = find_launchers(people, ranks)
    for launcher in launchers:
        silent = silent_children(people, launcher, ranks)
        ranks = [one for one in ranks if not _left_behind(people, one, silent + ranks)] + silent
    return {
        "ranks": ranks[:MOST],
        "launchers": launchers[:MOST_LAUNCHERS],
        "hidden": _hidden(people),
        "absent": people.absent,
    }


def _left_behind(people: People, one: Told, ranks: list[Told]) -> bool:
    """Whether it is an orphan in the seat of another: a worker that its rank has left behind."""
    if starter(people, one["pid"])[0] is not None:
        return False
    return any(
        other["pid"] != one["pid"]
        and _seat(other) == _seat(one)
        and starter(people, other["pid"])[0] is not None
        for other in ranks
    )


def _seat(one: Told) -> tuple[Any, Any]:
    return one.get("job"), one.get("rank", one["pid"])


def _seated(people: People) -> list[int]:
    """Return one process for each seat: its workers and the shell around it have it too.

    A launcher of ranks may stand in a place of its own: Slurm gives it one, and Kubernetes' jobs
    even torch's variables, for the node. That is no rank.
    """
    found = []
    for root in people.kin.roots:
        members = [pid for pid in people.kin.members(root) if not _launches(people, pid)]
        pythons = [pid for pid in members if people.is_python(pid)]
        if pythons:
            found.append(pythons[0])
        elif members and people.seats[root]["kind"] == "torch":
            found.append(members[0])
    return found


def _launches(people: People, pid: int) -> bool:
    return any(people.launcher(one) for one in (pid, *people.kin.below(pid)))


def _without_seats(people: People, wanted: list[int]) -> list[int]:
    """Return what else may be ranks: what was asked for by pid, else Pythons that hold GPUs."""
    if not wanted:
        holders = {pid for pid in people.environs if people.is_python(pid) and _has_gpu(pid)}
        return sorted(pid for pid in holders if not holders.intersection(people.kin.above(pid)))
    found: list[int] = []
    for pid in wanted:
        if pid in people.kin.stats:
            of_it = [one for one in people.kin.of(pid) if people.is_python(one)]
            started = [one for one in of_it if people.launcher(pid) or _is_spawned(people, one)]
            found += started or [pid]
    return list(dict.fromkeys(found))


def _is_spawned(people: People, pid: int) -> bool:
    """Whether multiprocessing's `spawn` started it, which sets no variables."""
    return any(b"spawn_main" in word for word in people.command(pid))


def _has_gpu(pid: int) -> bool:
    opened = procfs.opened(pid)
    return opened is not None and opened.gpu


def _hidden(people: People) -> int:
    """Count the Pythons of others that a launcher started: ranks, as far as one can tell."""
    stats = people.kin.stats
    return sum(
        people.is_python(pid) and bool(people.launcher(stats[pid].ppid)) for pid in people.denied
    )


class Patience:
    """The time that is left, and the `problems` so far."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.problems: list[str] = []

    def within(self, seconds: float) -> float:
        """Return the end (monotonic) of a step that may take so long."""
        return min(self.until, time.monotonic() + seconds)

    def complain(self, problem: str) -> None:
        """Add a line to `problems`, once."""
        if problem not in self.problems:
            self.problems.append(problem)

    def sleep_until(self, moment: float) -> None:
        """Wait for a moment (monotonic), but not beyond the end of all."""
        time.sleep(max(0.0, min(self.until, moment) - time.monotonic()))

    def hear(self, what: str, asked: guard.Child, seconds: float) -> Any:
        """Return what a guarded reader answers; None, and a line in `problems`, if it does not."""
        return guard.answer_of(what, asked, self.within(seconds), self.complain)
