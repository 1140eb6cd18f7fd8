"""Who is whose child: the workers of a rank carry its variables and are no ranks."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from probe.stat import Stat

    from .seats import Seat

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
