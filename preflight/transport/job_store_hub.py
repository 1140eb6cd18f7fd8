"""Rank 0's side of the job store: it sends orders, reads replies in one queue and watches beats.

One thread reads all ranks' replies and one watches their beats, however many ranks there are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf

import msgspec

from preflight.errors import WireError
from preflight.transport import job_store as notes
from preflight.transport import start_thread
from preflight.transport.job_store import JobStore, Order, Reply, StoreLostError
from preflight.transport.rank_follower import BEAT_S, LEAVE_S, SILENCE_S

_TICK_S = 1.0
_SIBLINGS_S = 2.0
_HOLE_S = 3.0
"""A rank may die after it took a place in the queue and before it wrote there."""


class RankHub:
    """Rank 0's connection to all other ranks. Thread-safe."""

    def __init__(self, incoming: JobStore, outgoing: JobStore, nonce: str) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._nonce = nonce
        self._changed = threading.Condition()
        self._lock = threading.Lock()
        self._sent: dict[int, int] = {}
        self._next_number: dict[int, int] = {}
        self._sinks: dict[tuple[int, int], Callable[[Reply | str], None]] = {}
        self.lost: dict[int, str] = {}
        """Why a rank no longer answers, for each such rank."""
        self.ended_by_torchrun: set[int] = set()
        """Ranks that exited because their own torchrun ended them."""
        self._answers: set[tuple[int, int]] = set()
        self._children = 0
        self._calls = 0
        self._watched: tuple[int, ...] = ()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Write the first beat, and keep beating until `finish`."""
        self._outgoing.write("beat/0", b"0")
        self._threads = [start_thread(self._listen), start_thread(self._beat)]

    def watch(self, ranks: Iterable[int]) -> None:
        """Watch the beats of these ranks from now on; each has answered once."""
        self._watched = tuple(ranks)

    # -- sending ----------------------------------------------------------------------------

    def send(self, rank: int, order: Order) -> None:
        """Send an order to a rank. StoreLostError if the store is gone."""
        note = msgspec.json.encode(notes.ToRank(self._nonce, order))
        with self._lock:
            number = self._sent.get(rank, 0)
            self._sent[rank] = number + 1
            self._outgoing.write(f"to/{rank}/{number}", note)

    def attach(self, rank: int, sink: Callable[[Reply | str], None]) -> int:
        """Number a new child; `sink` gets its replies, or the reason why the rank is lost."""
        with self._changed:
            self._children += 1
            child = self._children
            self._sinks[rank, child] = sink
            why = self.lost.get(rank)
        if why is not None:
            sink(why)
        return child

    def detach(self, rank: int, child: int) -> None:
        """Drop all further replies of a child."""
        with self._changed:
            self._sinks.pop((rank, child), None)

    def roll_call(self, ranks: Iterable[int], within_s: float) -> list[int]:
        """Ask ranks to answer, and return those that do not in time."""
        silent = set(ranks)
        with self._changed:
            self._calls += 1
            number = self._calls
            live = silent - self.lost.keys()
        for rank in live:
            self.send(rank, notes.Ask(number))
        deadline = time.monotonic() + within_s
        with self._changed:
            while {r for r in live if (r, number) not in self._answers} - self.lost.keys():
                if self.ended_by_torchrun & live:  # torchrun ends a node's ranks together
                    deadline = min(deadline, time.monotonic() + _SIBLINGS_S)
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    break
            silent -= {rank for rank in live - self.lost.keys() if (rank, number) in self._answers}
            self._answers -= {(rank, number) for rank in live}
        return sorted(silent)

    def finish(self, code: int) -> None:
        """Have all ranks exit with this code: order it, wait until they are ready, release them."""
        alive = [rank for rank in self._watched if rank not in self.lost]
        with suppress(StoreLostError):
            for rank in self._watched:
                self.send(rank, notes.Leave(code))
            self._outgoing.wait([f"ready/{rank}" for rank in alive], LEAVE_S)
            self._outgoing.write("go", b"1")
        self._stop()

    def _stop(self) -> None:
        """Stop our threads: one inside the store crashes an interpreter that shuts down."""
        self._stopping.set()
        with suppress(StoreLostError):  # a last note wakes the thread that reads
            self._outgoing.write(f"from/{self._outgoing.add('from', 1) - 1}", b"")
        for thread in self._threads:
            thread.join(BEAT_S)

    # -- receiving --------------------------------------------------------------------------

    def _listen(self) -> None:
        position, hole_until = 0, inf
        with suppress(StoreLostError):
            while not self._stopping.is_set():
                note, now = self._next(position), time.monotonic()
                if note is not None:
                    self._receive(note)
                else:
                    is_reserved = self._incoming.add("from") > position
                    hole_until = min(hole_until, now + _HOLE_S) if is_reserved else inf
                    if now < hole_until:
                        continue
                position, hole_until = position + 1, inf
        for rank in () if self._stopping.is_set() else self._watched:
            self._mark_lost(rank, "cannot answer: the job's store is gone")

    def _next(self, position: int) -> bytes | None:
        try:
            return self._incoming.take(f"from/{position}", _TICK_S)
        except WireError:
            return b""

    def _receive(self, note: bytes) -> None:
        try:
            message = notes.decode_note(note, notes.FromRank, self._nonce)
        except WireError:
            return  # the rank's next number shows that a reply is missing
        with self._changed:
            expected = self._next_number.get(message.rank, 0)
            self._next_number[message.rank] = expected + 1
        if message.number != expected:
            self._mark_lost(message.rank, "lost messages on the way")
            return
        self._dispatch(message)

    def _dispatch(self, message: notes.FromRank) -> None:
        rank, reply = message.rank, message.reply
        if isinstance(reply, notes.Here):
            with self._changed:
                self._answers.add((rank, reply.number))
                self._changed.notify_all()
        elif isinstance(reply, notes.Leaving):
            self.ended_by_torchrun.add(rank)
            self._mark_lost(rank, "was ended by its own torchrun")
        else:
            with self._changed:
                sink = self._sinks.get((rank, reply.child))
            if sink is not None:
                sink(reply)

    def _mark_lost(self, rank: int, why: str) -> None:
        with self._changed:
            if rank in self.lost:
                return
            self.lost[rank] = why
            sinks = [sink for (owner, _), sink in self._sinks.items() if owner == rank]
            self._changed.notify_all()
        for sink in sinks:
            sink(why)

    def _beat(self) -> None:
        """Write rank 0's beats, and check the other ranks'."""
        beats = 0
        last: dict[int, tuple[bytes, float]] = {}
        with suppress(StoreLostError):
            while not self._stopping.wait(BEAT_S):
                beats += 1
                self._outgoing.write("beat/0", str(beats).encode())
                self._check_beats(last)

    def _check_beats(self, last: dict[int, tuple[bytes, float]]) -> None:
        watched = [rank for rank in self._watched if rank not in self.lost]
        try:
            beats = self._outgoing.read_all([f"beat/{rank}" for rank in watched])
        except WireError:
            return
        now = time.monotonic()
        for rank, beat in zip(watched, beats, strict=True):
            if rank not in last or last[rank][0] != beat:
                last[rank] = (beat, now)
            elif now - last[rank][1] > SILENCE_S:
                self._mark_lost(rank, "stopped answering")
