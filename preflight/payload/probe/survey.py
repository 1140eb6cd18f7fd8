"""One pass over /proc finds what earlier jobs left: zombies, stuck processes, ranks, GPU users."""

from __future__ import annotations

import os
import re
import time

from . import procfs, sockets, stat
from .describe import Describer, rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .stat import Stat

MOST = 512
"""Processes described at most; beyond that the node is sick enough."""

LOOK_AGAIN_S = 0.2
"""D state and zombies are only worth telling when they are still so after this long."""

LOOK_STEP_S = 0.02
"""Most zombies are reaped at once: a look now and then saves waiting for those."""

_RANK_HINT = re.compile(rb"(?:^|\0)(?:RANK|LOCAL_RANK|TORCHELASTIC_RUN_ID)=")
_STEP = re.compile(rb"slurmstepd: \[(\d+)\D")


class Survey:
    """One pass. `mark(pid)` is called before anything is read that can hang."""

    def __init__(
        self,
        run_pid: int,
        gpu_mib: Mapping[int, int | None],
        stuck: Callable[[Stat], bool],
        mark: Callable[[int], None],
    ) -> None:
        self._run_pid, self._gpu_mib = run_pid, gpu_mib
        self._stuck, self._mark = stuck, mark
        self._everyone = stat.everyone()
        self._ranks: dict[int, bytes] = {}
        self._holders = {pid for pid in gpu_mib if pid in self._everyone}
        self._unreadable = 0
        self._describer = Describer(self._everyone, run_pid, stuck, mark)

    def run(self) -> dict[str, Any]:
        """Return the document's `Processes`, and `dropped`: how many notable ones did not fit."""
        gpus = any(name[:6] == "nvidia" and name[6:].isdigit() for name in os.listdir("/dev"))
        for one in self._everyone.values():
            if not one.kernel and one.state not in "ZX" and not self._stuck(one):
                self._read(one.pid, gpus=gpus)
        lasting, apart_s = self._lasting()
        pids = sorted(self._ranks.keys() | self._holders | lasting, key=self._rating)
        alive = self._jobs_alive()
        ports = _listening()
        notable = []
        for pid in pids[:MOST]:
            process = self._describe(self._everyone[pid], alive, ports)
            process["stuck_s"] = apart_s if process["state"] == "D" and pid in lasting else None
            notable.append(process)
        return {
            "seen": len(self._everyone),
            "unreadable": self._unreadable,
            "notable": notable,
            "scheduler": "none" if alive is None else "slurm",
            "dropped": len(pids) - len(notable),
        }

    def _read(self, pid: int, *, gpus: bool) -> None:
        self._mark(pid)
        environ = procfs.environ(pid)
        opened = procfs.opened(pid) if gpus else None
        hidden = environ is None or (gpus and opened is None)
        self._unreadable += hidden and os.path.exists(f"/proc/{pid}")
        if environ and _RANK_HINT.search(environ) and rank(procfs.variables(environ)):
            self._ranks[pid] = environ
        if opened and opened.gpu:
            self._holders.add(pid)

    def _lasting(self) -> tuple[set[int], float]:
        """Return who was a zombie or in D state at every look, and the seconds they took."""
        suspects = [
            one
            for one in self._everyone.values()
            if one.state in "DZ" and one.ppid != self._run_pid  # our own we reap in a moment
        ]
        if not suspects:
            return set(), 0.0
        began = time.monotonic()
        until = began + LOOK_AGAIN_S
        while suspects and time.monotonic() < until:
            time.sleep(LOOK_STEP_S)
            suspects = [one for one in suspects if _lasts(one)]
        return {one.pid for one in suspects}, round(time.monotonic() - began, 3)

    def _rating(self, pid: int) -> tuple[bool, bool, int]:
        """Sort key: zombies come last, when not all can be told."""
        return self._everyone[pid].state == "Z", pid not in self._holders, pid

    def _jobs_alive(self) -> set[str] | None:
        """Return the Slurm jobs that have a step daemon here; None without Slurm."""
        daemons = [
            one
            for one in self._everyone.values()
            if one.comm in (b"slurmd", b"slurmstepd")
            and procfs.is_daemon(one.pid, one.comm.decode("ascii"))
        ]
        if not daemons:
            return None
        titles = (b" ".join(procfs.argv(one.pid)) for one in daemons if not self._stuck(one))
        return {found.group(1).decode("ascii") for found in map(_STEP.search, titles) if found}

    def _describe(
        self, one: Stat, alive: set[str] | None, ports: Mapping[str, int]
    ) -> dict[str, Any]:
        process = self._describer.describe(one, self._ranks.get(one.pid))
        opened = procfs.opened(one.pid)
        listens = {ports[inode] for inode in opened.sockets if inode in ports} if opened else ()
        job = process["job"]
        process["wchan"] = procfs.wchan(one.pid) if one.state == "D" else ""
        process["job_alive"] = job in alive if job and alive is not None else None
        process["gpu_mib"] = self._gpu_mib.get(one.pid)
        process["holds_gpu"] = one.pid in self._holders
        process["listens"] = sorted(listens)
        return process


def _lasts(one: Stat) -> bool:
    now = stat.look(one.pid)
    return now is not None and now.start == one.start and now.state == one.state


def _listening() -> dict[str, int]:
    """Return port by socket inode of everything that listens here."""
    return {one.inode: one.port for one in sockets.tcp() if one.state == sockets.LISTEN}
