"""Finds the ranks of a node and who started them, among all of its processes, by one pass."""

from __future__ import annotations

from probe import procfs

from . import agents
from .member import describe
from .people import People

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from probe.stat import Stat

    Told = dict[str, Any]

MOST = 512
MOST_LAUNCHERS = 128


def find(
    run_pid: int,
    wanted: list[int],
    untouchable: Callable[[Stat], bool],
    mark: Callable[[int], None],
) -> dict[str, Any]:
    """Return `ranks`, `launchers`, how many are `hidden`, and which of `wanted` are `absent`.

    `wanted`: only these processes, what is below them, and of a rank the others that its launcher
    started; empty for all of this node but our own.
    """
    people = People(run_pid, wanted, untouchable, mark)
    ranks = [describe(people, pid, people.seats[pid]) for pid in _seated(people)]
    if not ranks:
        ranks = [describe(people, pid, None) for pid in _without_seats(people, wanted)]
    launchers = agents.launchers(people, ranks)
    for launcher in launchers:
        silent = agents.silent(people, launcher, ranks)
        ranks = [one for one in ranks if not _left_behind(people, one, silent + ranks)] + silent
    return {
        "ranks": ranks[:MOST],
        "launchers": launchers[:MOST_LAUNCHERS],
        "hidden": _hidden(people),
        "absent": people.absent,
    }


def _left_behind(people: People, one: Told, ranks: list[Told]) -> bool:
    """Whether it is an orphan in the seat of another: a worker that its rank has left behind."""
    if agents.starter(people, one["pid"])[0] is not None:
        return False
    return any(
        other["pid"] != one["pid"]
        and _seat(other) == _seat(one)
        and agents.starter(people, other["pid"])[0] is not None
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
