"""Looks at the launch's ranks every few seconds, and has them examined when they come to a stop.

What a rank does between two collectives shows: it reads, writes, touches memory, gives up the CPU.
A rank that waits for the others shows next to nothing of it, whether it sleeps (gloo) or spins at
100 % (NCCL): so CPU time decides nothing, and each rank is held against its own past. A suspicion
is no finding; the ranks' stacks decide.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from preflight.hang.watch import processes
from preflight.hang.watch.folder import (
    FOUND,
    NOBODY,
    PROGRESSES,
    STALLED_AFTER_S,
    Once,
    say,
)
from preflight.hang.watch.processes import Known, Seat, ranks_of
from preflight.hang.watch.settings import RECORDER_FOLDER
from preflight.hang.watch.signals import Errand

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from preflight.hang.watch.folder import Record
    from preflight.hang.watch.processes import Children, Reading


ANSWER_S = 2.5
"""torch looks into its pipe once a second (TORCH_NCCL_COORD_CHECK_MILSEC), then it writes."""


def ask_for_dumps(folder: Path) -> int:
    """Ask every rank that listens; how many do."""
    asked = 0
    for pipe in (folder / RECORDER_FOLDER).glob("*.pipe"):
        try:
            handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # its rank has gone
        try:
            os.write(handle, b"1\n")
            asked += 1
        except OSError:
            continue
        finally:
            os.close(handle)
    return asked


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


_PERIOD_S = 5.0
_LOOKS = 20
"""At least so many in a window."""

_FIND_AGAIN = 6
"""Looks after which new ranks are searched for: one by one they are found by their absence."""

_ROWS = 4096
_LONGEST_WAIT_S = 3600.0
_ENDS_S = 60.0
"""Chosen: torchrun gives its ranks 30 s to end when one has."""

EXAMINE_S = 90.0


class Watcher:
    """The eyes of a watch."""

    def __init__(
        self,
        launch: int,
        children: Children,
        folder: Path | None,
        record: Record,
        *,
        stalled_after_s: float = STALLED_AFTER_S,
        others: tuple[str, str] = ("", ""),
    ) -> None:
        self._launch, self._children, self._folder = launch, children, folder
        self._record, self._others = record, others
        self._window_s = stalled_after_s
        self.every_s = min(_PERIOD_S, stalled_after_s / _LOOKS)
        """When to call `look` next."""
        self.stalls = 0
        """How often a stall was found and told."""
        self._tracks: dict[Seat, Track] = {}
        self._seen: deque[tuple[object, ...]] = deque(maxlen=_ROWS)
        self._looked_s = self._examine_s = self._stood_s = 0.0
        self._looks = self._examined = 0
        self._errand: Errand | None = None
        self._asked_s: float | None = None
        self._told = ""
        self._told_of: frozenset[Seat] = frozenset()
        self._known: Known = {}
        self._once = Once()

    def look(self) -> None:
        """Once: at every rank. OSError and what else goes wrong is the caller's to survive."""
        now = time.monotonic()
        if self._looked_s and now - self._looked_s > 3 * self.every_s + 1:
            for track in self._tracks.values():
                track.forget()  # we were stopped, and so was the launch
        self._looked_s = now
        self._sample(now)
        if quiet := stalled(self._tracks.values()):
            self._stood_s = now
        if self._errand is not None:
            if self._errand.over():
                self._conclude(self._errand)
        elif self._asked_s is not None:
            if now >= self._asked_s + ANSWER_S:
                self._examine()
        elif not quiet:
            self._examined, self._examine_s = 0, 0.0
            self._take_back()
        elif now >= self._examine_s:
            self._begin(now)

    def end(self) -> None:
        """The launch has ended: what is known is told; who still looks sees only its end."""
        if self._errand is None:
            return
        if self._errand.over():
            self._conclude(self._errand)
        else:
            self._errand.conclude()

    @property
    def in_a_stall(self) -> bool:
        """Whether one was found that lasted until the launch ended, or began to."""
        return self.stalls > 0 and time.monotonic() - self._stood_s < _ENDS_S

    def keep_samples(self) -> None:
        """Write down what was seen."""
        self._record.samples(self._seen)

    def _sample(self, now: float) -> None:
        gone = self._looks % _FIND_AGAIN == 0
        self._looks += 1
        for seat, track in [*self._tracks.items()]:
            gone |= not self._read(seat, track, now)
        if not gone:
            return
        seats = set(ranks_of(self._launch, known=self._known))
        for seat in [*self._tracks]:
            if seat not in seats:
                del self._tracks[seat]
        for seat in sorted(seats - set(self._tracks), key=lambda one: one.pid):
            self._tracks[seat] = Track(self._window_s)
            self._read(seat, self._tracks[seat], now)

    def _read(self, seat: Seat, track: Track, now: float) -> bool:
        found = processes.reading_of(seat.pid)
        if found is None:
            return False
        track.add(now, found)
        self._seen.append((round(time.time(), 1), seat.rank, seat.pid, *found[1:]))
        return True

    def _begin(self, now: float) -> None:
        """Dumps first: they are there before anybody is looked at."""
        self._examined += 1
        self._examine_s = now + min(self._window_s * 2**self._examined, _LONGEST_WAIT_S)
        if self._folder is not None and ask_for_dumps(self._folder):
            self._asked_s = now
        else:
            self._examine()

    def _examine(self) -> None:
        self._asked_s = None
        words = ["preflight.hang.watch.examine", str(self._launch), str(self.stalls + 1)]
        words += [str(self._folder or ""), *self._others]
        self._errand = Errand(self._children, words, EXAMINE_S)

    def _conclude(self, errand: Errand) -> None:
        self._errand = None
        code, said = errand.conclude()
        if code == PROGRESSES:
            for track in self._tracks.values():
                track.learn()
        if code in (PROGRESSES, NOBODY):
            return
        if code == FOUND:
            self.stalls += 1
            self._tell(said)
            self._record.stall(f"diagnosis-{self.stalls}.json")
            self.keep_samples()
            return
        why = f"it took over {EXAMINE_S:g} s" if code < 0 else said.strip() or f"exit {code}"
        self._once.say(
            "examine",
            f"{self._quiet}, and why could not be looked into ({why}); "
            f"try: preflight diagnose --pid={self._launch}",
        )

    @property
    def _quiet(self) -> str:
        return f"half or more of the ranks here did next to nothing for {self._window_s:g} s"

    def _tell(self, said: str) -> None:
        """What was found; the same again is one line."""
        where = f"\nsee {self._folder}" if self._folder else ""
        what = said.partition("\nproof")[0]
        if what == self._told:
            say(f"still no progress, for the same reason{where}")
            return
        self._told, self._told_of = what, frozenset(self._tracks)
        say(f"{self._quiet}\n{said.rstrip()}{where}")

    def _take_back(self) -> None:
        """Say that a stall that was told is over; ranks that end, or are new, do not go on."""
        if self._told and self._told_of and self._told_of == frozenset(self._tracks):
            say("the ranks are at work again")
            self._told = ""
