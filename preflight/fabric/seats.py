"""A node on which each rank of the job sweeps its own rail looks like one agent from outside.

The ranks' words become one conversation: ready when all are, the store where the first rail has
it, every account as it comes, done when all are; a rank that breaks off costs its own rail.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from preflight.errors import WireError
from preflight.fabric.events import (
    Alive,
    Busy,
    Done,
    NoTorch,
    Ready,
    Rest,
    Store,
    Taken,
    Trouble,
    decode_event,
)
from preflight.transport.bundle import start_payload
from preflight.transport.leased import Leased
from preflight.transport.protocol import OUTPUT_LIMIT, ReachError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.events import Event
    from preflight.fleet.model import Host
    from preflight.transport.leased import Talk
    from preflight.transport.protocol import Manned

_ERROR_LIMIT = 500
_TURN_S = 1.0

_Words = tuple[int, bytes, "Event"]
_Failure = tuple[int, ReachError | WireError | TimeoutError]


def start_seats(
    node: Manned,
    host: Host,
    request: Mapping[str, object],
    deadline_s: float,
    *,
    limit: int = OUTPUT_LIMIT,
) -> Talk:
    """Start the sweep in each rank of a node; ReachError names a rank that cannot."""
    talks: list[Talk] = []
    try:
        for rail, seat in enumerate(node.seats):
            own = {**request, "seat": {"rail": rail, "rails": len(node.seats)}}
            talks.append(start_payload(seat, host, "sweep", own, deadline_s, limit=limit))
    except BaseException:
        for talk in talks:
            talk.close()
        raise
    return Seats(talks)


class Seats:
    """The conversations with all ranks of one node as one. Each has a lease of its own."""

    def __init__(self, talks: Sequence[Talk]) -> None:
        self._talks = tuple(Leased(talk) for talk in talks)
        self._said: queue.SimpleQueue[_Words | _Failure] = queue.SimpleQueue()
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
                said = self._said.get(timeout=max(0.0, ends - time.monotonic()))
            except queue.Empty:
                return None
            event = self._merge(said)
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
                document = talk.hear(_TURN_S)
                if document is None:
                    continue
                event = decode_event(document)
                if isinstance(event, Ready):
                    talk.watch()
                self._said.put((rail, document, event))
        except (ReachError, WireError, TimeoutError) as error:
            self._said.put((rail, error))

    def _merge(self, said: _Words | _Failure) -> bytes | None:
        """What the node as a whole says when one of its ranks says this; None for nothing yet."""
        rail = said[0]
        if len(said) == 2:  # noqa: PLR2004  a failure
            return self._broke_off(rail, said[1])
        _, document, event = said
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
            self._said.put((rail, msgspec.json.encode(Done()), Done()))
        elif self._resting:  # the others only waited for it
            self._said.put((min(self._resting), b"", Rest()))
        return msgspec.json.encode(_of_rank(rail, Trouble(words)))


def _of_rank(rail: int, event: Trouble | NoTorch | Busy | Taken) -> Event:
    """The same, with the rank named."""
    named = event.error if "local rank" in event.error else f"local rank {rail}: {event.error}"
    return msgspec.structs.replace(event, error=named[:_ERROR_LIMIT])
