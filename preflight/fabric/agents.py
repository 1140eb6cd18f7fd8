"""One conversation per node, or per rank of it, read side by side.

The ranks' words become one conversation: ready when all are, the store where the first rail has
it, every account as it comes, done when all are; a rank that breaks off costs its own rail.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from preflight.core.remote_command import OUTPUT_LIMIT, ReachError
from preflight.errors import WireError
from preflight.fabric.agent_events import (
    Alive,
    Busy,
    Done,
    Event,
    Lapsed,
    NoTorch,
    Ready,
    Rest,
    Store,
    Taken,
    Trouble,
    decode_event,
)
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
"""How long one of our orders may wait while we listen."""

_FORGIVEN_S = 5.0
"""What was said while we stood still is read within this."""


class Gone(Struct, frozen=True):
    """A node will say nothing more, and why."""

    reason: str
    advice: str = ""
    """Of whoever noticed it."""
    late: bool = False
    """Nothing broke: our own deadline passed."""


class Agents:
    """All conversations of one sweep. One thread each listens, speaks, and renews the lease."""

    def __init__(self, most_pairs: int, deadline_s: float) -> None:
        self._most_events = most_pairs + _EVENTS_BESIDE_PAIRS + int(deadline_s)
        self._ends = time.monotonic() + deadline_s
        self._events: queue.SimpleQueue[tuple[str, Event | Gone]] = queue.SimpleQueue()
        self._talks: dict[str, LeasedSession] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._orders: dict[str, queue.SimpleQueue[Mapping[str, object]]] = {}
        self._idle: set[str] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.own = SuspendDetector()

    def start(self, hosts: Iterable[Host], begin: Callable[[Host], MessageSession]) -> None:
        """Begin a conversation with each host, in a thread of its own."""
        self.own.watch()
        for host in hosts:
            self._orders[host.name] = queue.SimpleQueue()
            thread = threading.Thread(target=self._serve, args=(host, begin), daemon=True)
            self._threads[host.name] = thread
            thread.start()

    def next(self, within_s: float) -> tuple[str, Event | Gone] | None:
        """Return who said what next; None if nobody did in time (less what we stood still)."""
        more_s = min(_FORGIVEN_S, self.own.forgive_s())
        try:
            return self._events.get(timeout=max(0.0, within_s) + more_s)
        except queue.Empty:
            return None

    def quiet(self) -> bool:
        """Whether nobody has said anything that `next` has not returned."""
        return self._events.empty()

    def send(self, name: str, order: Mapping[str, object]) -> None:
        """Tell an agent something; if it is gone, `next` says so."""
        self._idle.discard(name)
        self._orders[name].put(order)

    def dismiss(self, name: str) -> None:
        """End one agent."""
        with self._lock:
            talk = self._talks.pop(name, None)
        if talk is not None:
            talk.close()

    def close(self) -> None:
        """Let those leave that wait for orders, end the others; keeps nobody waiting."""
        self.own.close()
        with self._lock:
            self._closed = True
            left = list(self._talks)
        busy = [name for name in left if name not in self._idle]
        for name in set(left) - set(busy):
            self.send(name, {"finish": True})
        self._dismiss_all(busy)
        self._join([self._threads[name] for name in left], _LEAVING_S)
        self._dismiss_all(left)

    def _dismiss_all(self, names: Iterable[str]) -> None:
        closing = [threading.Thread(target=self.dismiss, args=(n,), daemon=True) for n in names]
        for thread in closing:
            thread.start()
        self._join(closing, _CLOSING_S)

    @staticmethod
    def _join(threads: Iterable[threading.Thread], within_s: float) -> None:
        ends = time.monotonic() + within_s
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))

    def _serve(self, host: Host, begin: Callable[[Host], MessageSession]) -> None:
        try:
            talk = LeasedSession(begin(host))
            with self._lock:
                closed = self._closed
                if not closed:
                    self._talks[host.name] = talk
            if closed:
                talk.close()
                return
            self._converse(host.name, talk)
        except ReachError as error:
            self._events.put((host.name, Gone(error.sentence, error.advice)))
        except TimeoutError:
            self._events.put((host.name, Gone("it gave no answer in time", late=True)))
        except (WireError, OSError) as error:
            self._events.put((host.name, Gone(str(error) or type(error).__name__)))
        self.dismiss(host.name)

    def _converse(self, name: str, talk: LeasedSession) -> None:
        """Pass on what the agent says and what it is told, until it has no more to say."""
        orders = self._orders[name]
        events = 0
        while events < self._most_events:
            while not orders.empty():
                talk.send(orders.get())
            if time.monotonic() > self._ends:
                raise TimeoutError
            document = talk.hear(_TURN_S)
            if document is None:
                continue
            events += 1
            event = decode_event(document)
            if isinstance(event, Alive):
                continue
            if isinstance(event, Ready):
                talk.watch()  # before, importing torch may keep its Python from saying anything
            if isinstance(event, Ready | Done | Rest):
                self._idle.add(name)
            self._events.put((name, event))
            if isinstance(event, Lapsed):
                return
        raise WireError("its sweep said more than there was to say")


_ERROR_LIMIT = 500
_POLL_S = 1.0

_Words = tuple[int, bytes, "Event"]
_Failure = tuple[int, ReachError | WireError | TimeoutError]


def start_rank_agents(
    node: RankConnections,
    host: Host,
    request: Mapping[str, object],
    deadline_s: float,
    *,
    limit: int = OUTPUT_LIMIT,
) -> MessageSession:
    """Start the sweep in each rank of a node; ReachError names a rank that cannot."""
    talks: list[MessageSession] = []
    try:
        for rail, seat in enumerate(node.ranks):
            own = {**request, "seat": {"rail": rail, "rails": len(node.ranks)}}
            talks.append(start_payload(seat, host, "sweep", own, deadline_s, limit=limit))
    except BaseException:
        for talk in talks:
            talk.close()
        raise
    return RankAgents(talks)


class RankAgents:
    """The conversations with all ranks of one node as one. Each has a lease of its own."""

    def __init__(self, talks: Sequence[MessageSession]) -> None:
        self._talks = tuple(LeasedSession(talk) for talk in talks)
        self._events: queue.SimpleQueue[_Words | _Failure] = queue.SimpleQueue()
        self._ready: dict[int, Ready] = {}
        self._through: set[int] = set()
        self._resting: set[int] = set()
        self._gone: set[int] = set()
        self._held: Mapping[str, object] | None = None
        """The order to start, while the first rail makes the store that the others need."""
        for rail in range(len(talks)):
            threading.Thread(target=self._listen, args=(rail,), daemon=True).start()

    def hear(self, within_s: float) -> bytes | None:
        """Return the node's next event; None if there is none in time."""
        ends = time.monotonic() + within_s
        while True:
            try:
                entry = self._events.get(timeout=max(0.0, ends - time.monotonic()))
            except queue.Empty:
                return None
            event = self._merge(entry)
            if event is not None:
                return event

    def send(self, message: Mapping[str, object]) -> None:
        """Pass a message on to those ranks that it concerns."""
        order = message.get("go")
        if "renew" in message:  # each rank's own lease is renewed by who listens to it
            return
        if "gone" in message:
            self._talks[0].send(message)
        elif isinstance(order, dict) and order.get("store") is None:
            self._held = order
            self._talks[0].send(message)
        else:
            for talk in self._talks:
                talk.send(message)

    def close(self) -> None:
        """End all ranks' parts, side by side."""
        closing = [threading.Thread(target=talk.close, daemon=True) for talk in self._talks]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def _listen(self, rail: int) -> None:
        talk = self._talks[rail]
        try:
            while True:
                document = talk.hear(_POLL_S)
                if document is None:
                    continue
                event = decode_event(document)
                if isinstance(event, Ready):
                    talk.watch()
                self._events.put((rail, document, event))
        except (ReachError, WireError, TimeoutError) as error:
            self._events.put((rail, error))

    def _merge(self, entry: _Words | _Failure) -> bytes | None:
        """What the node as a whole says when one of its ranks says this; None for nothing yet."""
        rail = entry[0]
        if len(entry) == 2:  # noqa: PLR2004  a failure
            return self._broke_off(rail, entry[1])
        _, document, event = entry
        if isinstance(event, Alive):  # one rank's word is enough, and the first speaks for all
            return document if rail == min(set(range(len(self._talks))) - self._gone) else None
        if isinstance(event, Ready):
            self._ready[rail] = event
            return self._all_ready() if len(self._ready) == len(self._talks) else None
        if isinstance(event, Done | Rest):
            return self._one_less(rail, event)
        if isinstance(event, Store) and self._held is not None:
            self._start_others(event.port)
        if isinstance(event, Trouble | NoTorch | Busy | Taken):
            return msgspec.json.encode(_of_rank(rail, event))
        return document

    def _one_less(self, rail: int, event: Done | Rest) -> bytes | None:
        """The node is through when all its ranks are; it rests when those do that are not."""
        (self._through if isinstance(event, Done) else self._resting).add(rail)
        if len(self._through) == len(self._talks):
            return msgspec.json.encode(Done())
        if not self._resting or len(self._resting | self._through) < len(self._talks):
            return None
        self._resting.clear()
        return msgspec.json.encode(Rest())

    def _all_ready(self) -> bytes:
        ready = [self._ready[rail] for rail in sorted(self._ready)]
        cuda = all(one.cuda for one in ready)
        gpus = sum(min(one.gpus, 1) for one in ready) if cuda else 0
        return msgspec.json.encode(Ready(ready[0].torch, cuda, gpus, len(ready)))

    def _start_others(self, port: int) -> None:
        order, self._held = dict(self._held or {}), None
        order["store"] = [order["address"], port]
        for talk in self._talks[1:]:
            talk.send({"go": order})

    def _broke_off(self, rail: int, error: ReachError | WireError | TimeoutError) -> bytes | None:
        """Before all are ready the node cannot begin; later the other rails go on."""
        self._gone.add(rail)
        if len(self._gone) == len(self._talks):
            raise error
        if rail in self._through:
            return None
        if len(self._ready) < len(self._talks) or self._held is not None:
            raise error
        self._through.add(rail)
        words = str(error) or "gave no answer in time"
        if len(self._through) == len(self._talks):
            self._events.put((rail, msgspec.json.encode(Done()), Done()))
        elif self._resting:  # the others only waited for it
            self._events.put((min(self._resting), b"", Rest()))
        return msgspec.json.encode(_of_rank(rail, Trouble(words)))


def _of_rank(rail: int, event: Trouble | NoTorch | Busy | Taken) -> Event:
    """The same, with the rank named."""
    named = event.error if "local rank" in event.error else f"local rank {rail}: {event.error}"
    return msgspec.structs.replace(event, error=named[:_ERROR_LIMIT])
