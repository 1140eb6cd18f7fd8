"""One session with each node's sweep agent, or with each of its ranks, in parallel.

The ranks' sessions are merged into one: ready when all are, the store of the first rail, every
account as it comes, done when all are; a rank that breaks off costs only its own rail.
"""

from __future__ import annotations

import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from preflight.core.remote_command import OUTPUT_LIMIT, ReachError
from preflight.errors import WireError
from preflight.fabric.agent_events import (
    Event,
    Lapsed,
    Ready,
    Rest,
    Store,
    Taken,
    Trouble,
    decode_event,
)
from preflight.facts.burn import Alive, Busy, Done, NoTorch
from preflight.transport.bundle import start_payload
from preflight.transport.payload_session import LeasedSession, MessageSession, SuspendDetector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from preflight.fleet.model import Host
    from preflight.transport.ways import RankConnections


_LEAVING_S = 1.5
_CLOSING_S = 3.0
_EVENTS_BESIDE_PAIRS = 64
_TURN_S = 0.1
"""How long an order may wait while we read."""

_CATCH_UP_S = 5.0
"""Time to read the events that arrived while this process was suspended."""


class SessionEnd(Struct, frozen=True):
    """A node's session has ended, and why."""

    reason: str
    advice: str = ""
    """From the code that noticed it."""
    late: bool = False
    """Nothing failed: our own deadline passed."""


class Agents:
    """All sessions of one sweep. One thread per node reads, sends, and renews the lease."""

    def __init__(self, most_pairs: int, deadline_s: float) -> None:
        self._most_events = most_pairs + _EVENTS_BESIDE_PAIRS + int(deadline_s)
        self._deadline = time.monotonic() + deadline_s
        self._events: queue.SimpleQueue[tuple[str, Event | SessionEnd]] = queue.SimpleQueue()
        self._sessions: dict[str, LeasedSession] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._orders: dict[str, queue.SimpleQueue[Mapping[str, object]]] = {}
        self._idle: set[str] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.detector = SuspendDetector()

    def start(self, hosts: Iterable[Host], begin: Callable[[Host], MessageSession]) -> None:
        """Begin a session with each host, each in its own thread."""
        self.detector.watch()
        for host in hosts:
            self._orders[host.name] = queue.SimpleQueue()
            thread = threading.Thread(target=self._serve, args=(host, begin), daemon=True)
            self._threads[host.name] = thread
            thread.start()

    def next(self, timeout_s: float) -> tuple[str, Event | SessionEnd] | None:
        """Return the next (node, event); None if none came in time (suspension not counted)."""
        more_s = min(_CATCH_UP_S, self.detector.take_suspended_s())
        try:
            return self._events.get(timeout=max(0.0, timeout_s) + more_s)
        except queue.Empty:
            return None

    def is_drained(self) -> bool:
        """Whether `next` has returned all events so far."""
        return self._events.empty()

    def send(self, name: str, order: Mapping[str, object]) -> None:
        """Send an order to an agent; if it is gone, `next` reports it."""
        self._idle.discard(name)
        self._orders[name].put(order)

    def dismiss(self, name: str) -> None:
        """End one agent."""
        with self._lock:
            session = self._sessions.pop(name, None)
        if session is not None:
            session.close()

    def close(self) -> None:
        """Let idle agents exit and end the others, within a bounded time."""
        self.detector.close()
        with self._lock:
            self._closed = True
            names = list(self._sessions)
        busy = [name for name in names if name not in self._idle]
        for name in set(names) - set(busy):
            self.send(name, {"finish": True})
        self._dismiss_all(busy)
        self._join([self._threads[name] for name in names], _LEAVING_S)
        self._dismiss_all(names)

    def _dismiss_all(self, names: Iterable[str]) -> None:
        self._join(_start_threads(partial(self.dismiss, name) for name in names), _CLOSING_S)

    @staticmethod
    def _join(threads: Iterable[threading.Thread], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self, host: Host, begin: Callable[[Host], MessageSession]) -> None:
        try:
            session = LeasedSession(begin(host))
            with self._lock:
                closed = self._closed
                if not closed:
                    self._sessions[host.name] = session
            if closed:
                session.close()
                return
            self._converse(host.name, session)
        except ReachError as error:
            self._events.put((host.name, SessionEnd(error.sentence, error.advice)))
        except TimeoutError:
            self._events.put((host.name, SessionEnd("it gave no answer in time", late=True)))
        except (WireError, OSError) as error:
            self._events.put((host.name, SessionEnd(str(error) or type(error).__name__)))
        self.dismiss(host.name)

    def _converse(self, name: str, session: LeasedSession) -> None:
        """Pass events and orders between the agent and the queues, until it has ended."""
        orders = self._orders[name]
        events = 0
        while events < self._most_events:
            while not orders.empty():
                session.send(orders.get())
            if time.monotonic() > self._deadline:
                raise TimeoutError
            document = session.receive(_TURN_S)
            if document is None:
                continue
            events += 1
            event = decode_event(document)
            if isinstance(event, Alive):
                continue
            if isinstance(event, Ready):
                session.watch()  # earlier, importing torch may keep its Python from sending
            if isinstance(event, Ready | Done | Rest):
                self._idle.add(name)
            self._events.put((name, event))
            if isinstance(event, Lapsed):
                return
        raise WireError(f"its sweep sent more than the {self._most_events} events it could need")


def _start_threads(targets: Iterable[Callable[[], None]]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, daemon=True) for work in targets]
    for thread in threads:
        thread.start()
    return threads


_ERROR_LIMIT = 500
_POLL_S = 1.0

_Failure = ReachError | WireError | TimeoutError


def start_rank_agents(
    node: RankConnections,
    host: Host,
    request: Mapping[str, object],
    deadline_s: float,
    *,
    limit: int = OUTPUT_LIMIT,
) -> MessageSession:
    """Start the sweep in each rank of a node; ReachError names a rank that cannot."""
    sessions: list[MessageSession] = []
    try:
        for rail, rank in enumerate(node.ranks):
            of_rank = {**request, "job_rail": rail}
            sessions.append(start_payload(rank, host, "sweep", of_rank, deadline_s, limit=limit))
    except BaseException:
        for session in sessions:
            session.close()
        raise
    return RankAgents(sessions)


class RankAgents:
    """The sessions with all ranks of one node, merged into one. Each has its own lease."""

    def __init__(self, sessions: Sequence[MessageSession]) -> None:
        self._sessions = tuple(LeasedSession(session) for session in sessions)
        self._events: queue.SimpleQueue[tuple[int, bytes, Event | _Failure]] = queue.SimpleQueue()
        """From each rank: its rail, the document, and the document decoded."""
        self._ready: dict[int, Ready] = {}
        self._done: set[int] = set()
        self._resting: set[int] = set()
        self._ended: set[int] = set()
        self._pending_order: Mapping[str, object] | None = None
        """The start order, while the first rail makes the store that the others need."""
        for rail in range(len(sessions)):
            threading.Thread(target=self._listen, args=(rail,), daemon=True).start()

    def receive(self, within_s: float) -> bytes | None:
        """Return the node's next event; None if there is none in time."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                entry = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            merged = self._merge(*entry)
            if merged is not None:
                return merged

    def send(self, message: Mapping[str, object]) -> None:
        """Pass a message on to the ranks that it concerns."""
        order = message.get("go")
        if "renew" in message:  # the thread that reads a rank renews its lease
            return
        if "gone" in message:
            self._sessions[0].send(message)
        elif isinstance(order, dict) and order.get("store") is None:
            self._pending_order = order
            self._sessions[0].send(message)
        else:
            for session in self._sessions:
                session.send(message)

    def close(self) -> None:
        """End all ranks' sessions, in parallel."""
        for thread in _start_threads(session.close for session in self._sessions):
            thread.join()

    def _listen(self, rail: int) -> None:
        session = self._sessions[rail]
        try:
            while True:
                document = session.receive(_POLL_S)
                if document is None:
                    continue
                event = decode_event(document)
                if isinstance(event, Ready):
                    session.watch()
                self._events.put((rail, document, event))
        except (ReachError, WireError, TimeoutError) as error:
            self._events.put((rail, b"", error))

    def _merge(self, rail: int, document: bytes, event: Event | _Failure) -> bytes | None:
        """Return the node's event that follows from this event of a rank; None if there is none."""
        if isinstance(event, _Failure):
            return self._end_rank(rail, event)
        if isinstance(event, Alive):  # that of the first rank is enough for all
            return document if rail == min(set(range(len(self._sessions))) - self._ended) else None
        if isinstance(event, Ready):
            self._ready[rail] = event
            return self._merged_ready() if len(self._ready) == len(self._sessions) else None
        if isinstance(event, Done | Rest):
            return self._finish_rank(rail, event)
        if isinstance(event, Store) and self._pending_order is not None:
            self._start_others(event.port)
        if isinstance(event, Trouble | NoTorch | Busy | Taken):
            return msgspec.json.encode(_with_rank(rail, event))
        return document

    def _finish_rank(self, rail: int, event: Done | Rest) -> bytes | None:
        """Return Done when all ranks are done, Rest when all others rest; else None."""
        (self._done if isinstance(event, Done) else self._resting).add(rail)
        if len(self._done) == len(self._sessions):
            return msgspec.json.encode(Done())
        if not self._resting or len(self._resting | self._done) < len(self._sessions):
            return None
        self._resting.clear()
        return msgspec.json.encode(Rest())

    def _merged_ready(self) -> bytes:
        ready = [self._ready[rail] for rail in sorted(self._ready)]
        cuda = all(rank.cuda for rank in ready)
        gpus = sum(min(rank.gpus, 1) for rank in ready) if cuda else 0
        return msgspec.json.encode(Ready(ready[0].torch, cuda, gpus, len(ready)))

    def _start_others(self, port: int) -> None:
        order, self._pending_order = dict(self._pending_order or {}), None
        order["store"] = [order["address"], port]
        for session in self._sessions[1:]:
            session.send({"go": order})

    def _end_rank(self, rail: int, error: _Failure) -> bytes | None:
        """Raise if the node has not started, as it needs all ranks; else its other rails go on."""
        self._ended.add(rail)
        if len(self._ended) == len(self._sessions):
            raise error
        if rail in self._done:
            return None
        if len(self._ready) < len(self._sessions) or self._pending_order is not None:
            raise error
        self._done.add(rail)
        words = str(error) or "gave no answer in time"
        if len(self._done) == len(self._sessions):
            self._events.put((rail, msgspec.json.encode(Done()), Done()))
        elif self._resting:  # the others only waited for it
            self._events.put((min(self._resting), b"", Rest()))
        return msgspec.json.encode(_with_rank(rail, Trouble(words)))


def _with_rank(rail: int, event: Trouble | NoTorch | Busy | Taken) -> Event:
    """Return the event with the rank named in its error."""
    error = event.error if "local rank" in event.error else f"local rank {rail}: {event.error}"
    return msgspec.structs.replace(event, error=error[:_ERROR_LIMIT])
