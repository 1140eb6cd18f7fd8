"""The processes of a node with what they were started with, each read once and with care."""

from __future__ import annotations

import os

import children
from probe import procfs
from probe.describe import ancestors
from probe.stat import everyone
from probe.text import clean

from . import launching, seats
from .kin import Kin, same

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from probe.stat import Stat

    from .seats import Seat

_HELPERS = (b"resource_tracker", b"semaphore_tracker")
"""Of Python's multiprocessing: they compute nothing."""

_ENDED = "ZX"


class People:
    """All processes but our own; `only`: these, what is below them, and of a rank its launcher's.

    Reading a process's environment or command can hang, where a thread of it hangs in the kernel:
    `mark` is told the pid before, and who is `untouchable` is left alone.
    """

    def __init__(
        self,
        run_pid: int,
        only: Collection[int],
        untouchable: Callable[[Stat], bool],
        mark: Callable[[int], None],
    ) -> None:
        self._untouchable, self._mark = untouchable, mark
        every = everyone()
        ours = {run_pid, *children.below(run_pid), *ancestors(run_pid)}
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
        self._mark(pid)
        block = procfs.environ(pid)
        if block is None:
            if os.path.exists(f"/proc/{pid}"):
                self.denied.append(pid)
            return
        self.environs[pid] = procfs.variables(block)
        seat = seats.seat(self.environs[pid])
        if seat:
            self.seats[pid] = seat

    def ended(self, pid: int) -> bool:
        """Whether it is a zombie."""
        return self.kin.stats[pid].state in _ENDED

    def stuck(self, pid: int) -> bool:
        """Whether reading its memory would hang."""
        return pid in self.kin.stats and self._untouchable(self.kin.stats[pid])

    def command(self, pid: int) -> list[bytes]:
        """Return its command line; [] where it has none or must not be read."""
        if pid not in self._argv:
            self._mark(pid)
            self._argv[pid] = [] if self.stuck(pid) else procfs.argv(pid)
        return self._argv[pid]

    def launcher(self, pid: int) -> str:
        """Name the kind of launcher that it is; "" for anything else."""
        return launching.kind(self.command(pid))

    def is_python(self, pid: int) -> bool:
        """Whether it runs Python, other than a helper of multiprocessing's own."""
        command = self.command(pid)
        try:
            program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        except OSError:
            program = os.path.basename(clean((command or [b""])[0]))
        helper = any(name in word for word in command for name in _HELPERS)
        return program.startswith(("python", "pypy")) and not helper
