"""One conversation per node, read side by side: a node that is stuck or lies harms no other."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.errors import WireError
from preflight.fabric.events import Alive, Done, Event, Lapsed, Ready, Rest, decode_event
from preflight.transport.leased import Leased, Talk
from preflight.transport.protocol import ReachError
from preflight.transport.standstill import Standstill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from preflight.fleet.model import Host

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
        self._said: queue.SimpleQueue[tuple[str, Event | Gone]] = queue.SimpleQueue()
        self._talks: dict[str, Leased] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._orders: dict[str, queue.SimpleQueue[Mapping[str, object]]] = {}
        self._idle: set[str] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.own = Standstill()

    def start(self, hosts: Iterable[Host], begin: Callable[[Host], Talk]) -> None:
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
            return self._said.get(timeout=max(0.0, within_s) + more_s)
        except queue.Empty:
            return None

    def quiet(self) -> bool:
        """Whether nobody has said anything that `next` has not returned."""
        return self._said.empty()

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

    def _serve(self, host: Host, begin: Callable[[Host], Talk]) -> None:
        try:
            talk = Leased(begin(host))
            with self._lock:
                closed = self._closed
                if not closed:
                    self._talks[host.name] = talk
            if closed:
                talk.close()
                return
            self._converse(host.name, talk)
        except ReachError as error:
            self._said.put((host.name, Gone(error.sentence, error.advice)))
        except TimeoutError:
            self._said.put((host.name, Gone("it gave no answer in time", late=True)))
        except (WireError, OSError) as error:
            self._said.put((host.name, Gone(str(error) or type(error).__name__)))
        self.dismiss(host.name)

    def _converse(self, name: str, talk: Leased) -> None:
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
            self._said.put((name, event))
            if isinstance(event, Lapsed):
                return
        raise WireError("its sweep said more than there was to say")
