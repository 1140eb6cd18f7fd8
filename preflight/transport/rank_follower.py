"""Every rank but rank 0: serves orders from the store, prints nothing, leaves when all leave.

A rank that left alone would make torchrun hold the other nodes' agents for 300 s; a rank that
stayed alone would hold its own. So it watches rank 0, and ends with it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from preflight import __version__
from preflight.errors import WireError
from preflight.torchrun.announce import present
from preflight.torchrun.board import Board, StoreLostError
from preflight.torchrun.child import Child, start_child
from preflight.torchrun.notes import (
    Ask,
    Decoder,
    End,
    Feed,
    FromRank,
    Here,
    Leave,
    Leaving,
    Start,
    decode_hello,
)

if TYPE_CHECKING:
    from types import FrameType

    from preflight.torchrun.notes import Order, Reply
    from preflight.torchrun.place import Place
    from preflight.transport.bundle import Beside

HELLO_S = 120.0
"""For rank 0 to speak: its Python may come from a cold network file system."""

BEAT_S = 2.0
SILENCE_S = 15.0
"""Without a beat for this long a rank, or rank 0, is taken for gone."""

LEAVE_S = 10.0
"""For the other ranks to be ready to leave as well."""

BROKE, INTERRUPTED = 3, 2
_TICK_S = 0.5


class _Told(BaseException):
    """No error: torchrun's agent wants us gone."""


def follow(place: Place, beside: Beside = ()) -> int:
    """Serve rank 0 until the run is over; the exit code is that of all ranks.

    `beside`: the site's own modules for the probe, as this node has them.
    """
    watch = _Watch(place)
    signal.signal(signal.SIGTERM, _told)
    signal.signal(signal.SIGINT, _told)
    try:
        return Follower(place, watch, beside).serve()
    except _Told:
        return INTERRUPTED
    except (StoreLostError, WireError) as error:
        watch.complain(str(error))
        return BROKE
    finally:
        # From here on SIGTERM only means that we leave later than another rank of this node.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        watch.end_children()


def _told(number: int, frame: FrameType | None) -> None:
    del number, frame
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    raise _Told


class _Watch:
    """Ends this rank when rank 0 is gone, even while a call of the store hangs."""

    def __init__(self, place: Place) -> None:
        self.children: dict[int, Child] = {}
        self._place = place
        self._heard = time.monotonic() + HELLO_S
        threading.Thread(target=self._run, daemon=True).start()

    def heard(self) -> None:
        """Rank 0 is alive."""
        self._heard = time.monotonic()

    def end_children(self) -> None:
        """End what runs here for rank 0."""
        for child in list(self.children.values()):
            child.end()

    def complain(self, reason: str) -> None:
        """One line per node, for want of rank 0's voice."""
        if self._place.seat == 0:
            with suppress(OSError):
                text = f"preflight: rank {self._place.rank} leaves: {reason}\n"
                os.write(2, text.encode("ascii", "replace"))

    def _run(self) -> None:
        while time.monotonic() - self._heard < SILENCE_S:
            time.sleep(_TICK_S)
        self.complain(f"rank 0 fell silent for {SILENCE_S:g} s; look at its node's torchrun")
        self.end_children()
        os._exit(BROKE)


class Follower:
    """One rank's part of a run."""

    def __init__(self, place: Place, watch: _Watch, beside: Beside) -> None:
        self._place = place
        self._watch = watch
        self._beside = beside
        self._listening = Board.open(place)
        self._speaking = Board.open(place)
        note = self._listening.read("hello", HELLO_S)
        if note is None:
            raise StoreLostError(f"rank 0 said nothing within {HELLO_S:g} s: look at its node")
        hello = decode_hello(note)
        self._nonce = hello.nonce
        self._decoder = Decoder(hello.nonce)
        self._watch.heard()
        self._number = 0
        self._turn = threading.Lock()

    def serve(self) -> int:
        """Take orders until the one to leave."""
        rank = self._place.rank
        self._speaking.write(f"beat/{rank}", b"0")
        told = present(self._place, self._nonce, __version__)
        self._speaking.write(f"present/{rank}", msgspec.json.encode(told))
        threading.Thread(target=self._beat, daemon=True).start()
        try:
            # Not in line: Python 3.11 does not count a loop's way back to the `try` around it, and
            # an exception raised there by a signal would pass us by.
            code = self._take_orders()
        except _Told:
            self._say(Leaving("torchrun told it to end (SIGTERM)"))
            raise
        return self._leave(code)

    def _take_orders(self) -> int:
        at = 0
        while True:
            note = self._listening.take(f"to/{self._place.rank}/{at}", _TICK_S)
            if note is not None:
                at += 1
                order = self._decoder.order(note)
                if isinstance(order, Leave):
                    return order.code
                self._obey(order)

    def _obey(self, order: Order) -> None:
        if isinstance(order, Start):
            child = start_child(order, self._say, self._beside)
            if child is not None:
                self._watch.children[order.child] = child
        elif isinstance(order, Feed):
            child = self._watch.children.get(order.child)
            if child is not None:
                child.feed(order.data, last=order.last)
        elif isinstance(order, End):
            child = self._watch.children.pop(order.child, None)
            if child is not None:
                threading.Thread(target=child.end, daemon=True).start()
        elif isinstance(order, Ask):
            self._say(Here(order.number))

    def _leave(self, code: int) -> int:
        """Say that this rank is ready, and go when rank 0 sees that all are."""
        self._watch.end_children()
        with suppress(StoreLostError):  # rank 0 and its torchrun may be gone already
            self._speaking.write(f"ready/{self._place.rank}", b"1")
            self._listening.wait(["go"], LEAVE_S)
        return code

    def _say(self, reply: Reply) -> None:
        """Put a reply into the one row that rank 0 reads; without a store, `serve` ends."""
        with self._turn, suppress(StoreLostError):
            words = FromRank(self._nonce, self._place.rank, self._number, reply)
            self._number += 1
            place = self._speaking.count("from", 1) - 1
            self._speaking.write(f"from/{place}", msgspec.json.encode(words))

    def _beat(self) -> None:
        beats, before = 0, b""
        with suppress(StoreLostError, WireError):
            while True:
                beats += 1
                self._speaking.write(f"beat/{self._place.rank}", str(beats).encode())
                now = self._speaking.read("beat/0", 0.0)
                if now is not None and now != before:
                    before = now
                    self._watch.heard()
                time.sleep(BEAT_S)
