"""Rank 0's side of the job store: it sends orders, reads replies in one queue and watches beats.

One thread reads all ranks' replies and one watches their beats, however many ranks there are.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from preflight.errors import WireError
from preflight.transport.job_store import Ask, Decoder, Here, Leave, Leaving, StoreLostError, ToRank
from preflight.transport.rank_follower import BEAT_S, LEAVE_S, SILENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from preflight.transport.job_store import FromRank, JobStore, Order, Reply

_TICK_S = 1.0
_BESIDE_S = 2.0
_HOLE_S = 3.0
"""A rank may die after it took a place in the queue and before it wrote there."""


class RankHub:
    """Rank 0's connection to all other ranks. Thread-safe."""

    def __init__(self, listening: JobStore, speaking: JobStore, nonce: str) -> None:
        self._listening = listening
        self._speaking = speaking
        self._nonce = nonce
        self._decoder = Decoder(nonce)
        self._moved = threading.Condition()
        self._sending = threading.Lock()
        self._sent: dict[int, int] = {}
        self._replies_seen: dict[int, int] = {}
        self._sinks: dict[tuple[int, int], Callable[[Reply | str], None]] = {}
        self._lost: dict[int, str] = {}
        self._left: set[int] = set()
        self._here: set[tuple[int, int]] = set()
        self._children = 0
        self._asked = 0
        self._watched: tuple[int, ...] = ()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Write the first beat, and keep beating until `finish`."""
        self._speaking.write("beat/0", b"0")
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._listen, self._beat)
        ]
        for thread in self._threads:
            thread.start()

    def watch(self, ranks: Iterable[int]) -> None:
        """Watch the beats of these ranks from now on; each has answered once."""
        self._watched = tuple(ranks)

    # -- speaking ---------------------------------------------------------------------------

    def send(self, rank: int, order: Order) -> None:
        """Send an order to a rank. StoreLostError if the store is gone."""
        note = msgspec.json.encode(ToRank(self._nonce, order))
        with self._sending:
            at = self._sent.get(rank, 0)
            self._sent[rank] = at + 1
            self._speaking.write(f"to/{rank}/{at}", note)

    def attach(self, rank: int, sink: Callable[[Reply | str], None]) -> int:
        """Number a new child; `sink` gets its replies, or the reason why the rank is lost."""
        with self._moved:
            self._children += 1
            child = self._children
            self._sinks[rank, child] = sink
            why = self._lost.get(rank)
        if why is not None:
            sink(why)
        return child

    def detach(self, rank: int, child: int) -> None:
        """Drop all further replies of a child."""
        with self._moved:
            self._sinks.pop((rank, child), None)

    def roll_call(self, ranks: Iterable[int], within_s: float) -> list[int]:
        """Ask ranks to answer, and return those that do not in time."""
        with self._moved:
            self._asked += 1
            number = self._asked
            asked = {rank for rank in ranks if rank not in self._lost}
        missing = set(ranks) - asked
        for rank in asked:
            self.send(rank, Ask(number))
        ends = time.monotonic() + within_s
        with self._moved:
            while left := {r for r in asked if (r, number) not in self._here} - self._lost.keys():
                if self._left & asked:  # torchrun ends a node's ranks together
                    ends = min(ends, time.monotonic() + _BESIDE_S)
                if not self._moved.wait(max(0.0, ends - time.monotonic())):
                    break
            silent = missing | left | (asked & self._lost.keys())
            self._here -= {(rank, number) for rank in asked}
        return sorted(silent)

    def why_lost(self, rank: int) -> str:
        """Why a rank no longer answers; "" while it does."""
        return self._lost.get(rank, "")

    def ended_by_torchrun(self, rank: int) -> bool:
        """Whether a rank exited because its own torchrun ended it."""
        return rank in self._left

    def finish(self, code: int) -> None:
        """Have all ranks exit with this code: order it, wait until they are ready, release them."""
        alive = [rank for rank in self._watched if rank not in self._lost]
        with suppress(StoreLostError):
            for rank in self._watched:
                self.send(rank, Leave(code))
            self._speaking.wait([f"ready/{rank}" for rank in alive], LEAVE_S)
            self._speaking.write("go", b"1")
        self._stop()

    def _stop(self) -> None:
        """Stop our threads: one inside the store crashes an interpreter that shuts down."""
        self._over.set()
        with suppress(StoreLostError):  # a last note wakes the thread that reads
            self._speaking.write(f"from/{self._speaking.count('from', 1) - 1}", b"")
        for thread in self._threads:
            thread.join(BEAT_S)

    # -- listening --------------------------------------------------------------------------

    def _listen(self) -> None:
        at = 0
        drawn_since: float | None = None
        with suppress(StoreLostError):
            while not self._over.is_set():
                note = self._next(at)
                if note is not None:
                    self._take(note)
                elif self._listening.count("from") <= at:
                    drawn_since = None
                    continue
                elif drawn_since is None or time.monotonic() - drawn_since < _HOLE_S:
                    drawn_since = drawn_since or time.monotonic()
                    continue
                at, drawn_since = at + 1, None
        for rank in () if self._over.is_set() else self._watched:
            self._lose(rank, "cannot answer: the job's store is gone")

    def _next(self, at: int) -> bytes | None:
        try:
            return self._listening.take(f"from/{at}", _TICK_S)
        except WireError:
            return b""

    def _take(self, note: bytes) -> None:
        try:
            words = self._decoder.reply(note)
        except WireError:
            return  # the rank's next number shows that a reply is missing
        with self._moved:
            expected = self._replies_seen.get(words.rank, 0)
            self._replies_seen[words.rank] = expected + 1
        if words.number != expected:
            self._lose(words.rank, "lost messages on the way")
            return
        self._hear(words)

    def _hear(self, words: FromRank) -> None:
        rank, reply = words.rank, words.reply
        if isinstance(reply, Here):
            with self._moved:
                self._here.add((rank, reply.number))
                self._moved.notify_all()
        elif isinstance(reply, Leaving):
            self._left.add(rank)
            self._lose(rank, "was ended by its own torchrun")
        else:
            with self._moved:
                sink = self._sinks.get((rank, reply.child))
            if sink is not None:
                sink(reply)

    def _lose(self, rank: int, why: str) -> None:
        with self._moved:
            if rank in self._lost:
                return
            self._lost[rank] = why
            sinks = [sink for (whose, _), sink in self._sinks.items() if whose == rank]
            self._moved.notify_all()
        for sink in sinks:
            sink(why)

    def _beat(self) -> None:
        """Write rank 0's beats, and check the other ranks'."""
        beats = 0
        last: dict[int, tuple[bytes, float]] = {}
        with suppress(StoreLostError):
            while not self._over.wait(BEAT_S):
                beats += 1
                self._speaking.write("beat/0", str(beats).encode())
                self._look(last)

    def _look(self, last: dict[int, tuple[bytes, float]]) -> None:
        watched = [rank for rank in self._watched if rank not in self._lost]
        try:
            beats = self._speaking.read_all([f"beat/{rank}" for rank in watched])
        except WireError:
            return
        now = time.monotonic()
        for rank, beat in zip(watched, beats, strict=True):
            if rank not in last or last[rank][0] != beat:
                last[rank] = (beat, now)
            elif now - last[rank][1] > SILENCE_S:
                self._lose(rank, "stopped answering")
