"""Whether a job still gets on, from what the kernel counts of its ranks: pure, no I/O.

What a rank does between two collectives shows: it reads, writes, touches memory, gives up the CPU.
A rank that waits for the others shows next to nothing of it, whether it sleeps (gloo) or spins at
100 % (NCCL): so CPU time decides nothing, and each rank is held against its own past. A suspicion
is no finding; the ranks' stacks decide.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.watching.proc import Reading

QUIET_SHARE = 0.1
"""Of a rank's own usual rate. Chosen: a job that lost nine tenths of its pace is worth a look."""

_PASTS = 64
_STRIDES = 4
"""How often in one window its rates are noted as usual ones."""


class Rates(NamedTuple):
    """What a rank did per second."""

    faults: float
    switches: float
    calls: float
    moved: float


FLOORS = Rates(faults=50, switches=20, calls=5, moved=16 << 10)
"""What is below counts as nothing. Chosen; measured of ranks of torch 2.13 that wait in a gloo
collective, or sleep: 0.3 switches per second, and none of the others."""


class Track:
    """What one rank did in the last window, and what it usually does."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._looks: deque[tuple[float, Reading]] = deque()
        self._pasts: deque[Rates] = deque(maxlen=_PASTS)
        self._noted_s: float | None = None

    def add(self, now_s: float, reading: Reading) -> None:
        """One more look."""
        if self._looks and self._looks[-1][1].started != reading.started:
            self.forget()
            self._pasts.clear()
            self._noted_s = None
        self._looks.append((now_s, reading))
        while len(self._looks) > 2 and self._looks[1][0] <= now_s - self._window_s:  # noqa: PLR2004
            self._looks.popleft()
        self._note(now_s)

    def _note(self, now_s: float) -> None:
        rates = self.rates
        if rates is None:
            return
        if self._noted_s is None:
            # The first window is the start: it imports, which nothing later comes up to.
            self._noted_s = now_s
        elif now_s - self._noted_s >= self._window_s / _STRIDES:
            self._pasts.append(rates)
            self._noted_s = now_s

    def forget(self) -> None:
        """After a pause of ours: the looks before it say nothing of what lies between."""
        self._looks.clear()

    def learn(self) -> None:
        """What it does now is usual: somebody looked closely, and it gets on."""
        rates = self.rates
        self._pasts.clear()
        if rates:
            self._pasts.append(rates)

    @property
    def rates(self) -> Rates | None:
        """Of the last window; None until there is a whole one."""
        if not self._looks:
            return None
        (then_s, then), (now_s, now) = self._looks[0], self._looks[-1]
        if now_s - then_s < self._window_s:
            return None
        return Rates(
            *(
                (getattr(now, field) - getattr(then, field)) / (now_s - then_s)
                for field in Rates._fields
            )
        )

    @property
    def quiet(self) -> bool:
        """Whether it did next to nothing for a whole window."""
        rates = self.rates
        return rates is not None and all(
            rate <= max(floor, QUIET_SHARE * usual)
            for rate, floor, usual in zip(rates, FLOORS, self._usual(), strict=True)
        )

    def _usual(self) -> Rates:
        if not self._pasts:
            return Rates(0, 0, 0, 0)
        return Rates(*(sorted(one)[len(one) // 2] for one in zip(*self._pasts, strict=True)))


def stalled(tracks: Iterable[Track]) -> bool:
    """Whether it is time to look: at least half of the ranks here were quiet for the window.

    Half, as one rank that works on alone (an evaluation, a checkpoint, an endless loop) keeps all
    others waiting, and of two ranks that is one.
    """
    quiet = [track.quiet for track in tracks]
    return bool(quiet) and 2 * sum(quiet) >= len(quiet)
