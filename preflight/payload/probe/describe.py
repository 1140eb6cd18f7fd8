"""A process in the words an operator needs: who, what, since when, whose job, whose child."""

from __future__ import annotations

import os

import children

from . import procfs, redact
from .stat import look
from .text import clean
from .users import Users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .stat import Stat

_RANK = {
    "rank": b"RANK",
    "local_rank": b"LOCAL_RANK",
    "world_size": b"WORLD_SIZE",
    "master_addr": b"MASTER_ADDR",
    "master_port": b"MASTER_PORT",
    "elastic_run_id": b"TORCHELASTIC_RUN_ID",
}
"""The only values of an environment that ever leave a node."""

_DEEPEST = 64
"""Ancestors looked at: a loop made by reused pids must end."""


class Describer:
    """Describes processes of one node, given everyone's stat line and the pid of our probe.

    `stuck` says of which processes the memory (command, environment) must not be touched, and
    `mark` is told the pid before any other's is.
    """

    def __init__(
        self,
        everyone: Mapping[int, Stat],
        run_pid: int,
        stuck: Callable[[Stat], bool],
        mark: Callable[[int], None],
    ) -> None:
        self._everyone = everyone
        self._stuck, self._mark = stuck, mark
        self._users = Users(patient=True)
        self._uid = os.geteuid()
        above = ancestors(run_pid)
        self._ours = {run_pid, *children.below(run_pid), *above}
        self._agent = _agent(above)

    def user(self, uid: int | None) -> str:
        """Return the login name of a user id; "?" where the process is gone."""
        return "?" if uid is None else clean(self._users.name(uid))

    def describe(self, stat: Stat, environ: bytes | None) -> dict[str, Any]:
        """Return one `Process` of the document, except what only a survey of all can add."""
        uid = procfs.uid(stat.pid)
        variables = procfs.variables(environ)
        its_rank = rank(variables)
        parent = self._everyone.get(stat.ppid)
        return {
            "pid": stat.pid,
            "ppid": stat.ppid,
            "state": stat.state,
            "user": self.user(uid),
            "command": self.command(stat, uid),
            "age_s": round(stat.age_s(), 3),
            "parent_command": self.command(parent, procfs.uid(parent.pid)) if parent else "",
            "parent_age_s": round(parent.age_s(), 3) if parent else None,
            "rank": its_rank,
            "job": procfs.job(stat.pid) or clean(variables.get(b"SLURM_JOB_ID", b"")),
            "ours": stat.pid in self._ours or bool(its_rank and stat.ppid == self._agent),
            "threads": stat.threads,
        }

    def command(self, stat: Stat, uid: int | None) -> str:
        """Return its command without secrets; [name] where it has none or it must not be read."""
        if stat.kernel or stat.state in "ZX" or self._stuck(stat):
            return bare(stat)
        self._mark(stat.pid)
        argv = procfs.argv(stat.pid)
        return redact.command(argv, whole=uid == self._uid) if argv else bare(stat)


def _agent(above: list[int]) -> int | None:
    """Return the launcher whose rank we are (torchrun -m pytest): its other ranks are our run too.

    It is the first ancestor that is no rank itself, when the ones below it are.
    """
    if rank(os.environb) is None:
        return None
    for pid in above:
        if rank(procfs.variables(procfs.environ(pid))) is None:
            return pid
    return None


def bare(stat: Stat) -> str:
    """Name a process without touching its memory: that read can hang when it is stuck."""
    return f"[{clean(stat.comm)}]"


def rank(environ: Mapping[bytes, bytes]) -> dict[str, str] | None:
    """Return its place in a distributed job; None when its environment names none."""
    if not (
        b"LOCAL_RANK" in environ
        or b"TORCHELASTIC_RUN_ID" in environ
        or (b"RANK" in environ and b"WORLD_SIZE" in environ)
    ):
        return None
    return {name: clean(environ.get(variable, b"")) for name, variable in _RANK.items()}


def ancestors(pid: int) -> list[int]:
    """Return the pids above, up to but without init: init is everyone's."""
    above: list[int] = []
    stat = look(pid)
    while stat and stat.ppid > 1 and len(above) < _DEEPEST:
        above.append(stat.ppid)
        stat = look(stat.ppid)
    return above
