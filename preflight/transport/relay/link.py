"""One node's connection: the commands that run on it, and what is on its way to and from them."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from preflight.transport.relay import frames

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from preflight.transport.relay.frames import Frame
    from preflight.transport.relay.hello import Proven

IN_ROOM = 256 << 10
OUT_ROOM = 1 << 20
"""Bytes that may be on their way to a command, and from it; `payload/relay/command.py` agrees."""

SEND = 256 << 10


class Channel:
    """One command. Each field is written by one thread only, the hub's or the reader's."""

    def __init__(self) -> None:
        self.news = threading.Event()
        """Set by the hub on every change."""
        self.arrived: deque[tuple[int, bytes]] = deque()
        """(OUT or ERR, bytes), in the order in which they came."""
        self.ended = False
        """No more output will come."""
        self.deaf = False
        """It takes no more input."""
        self.exited = threading.Event()
        self.status: int | None = None
        self.granted = IN_ROOM
        """Bytes of input that the node has promised room for, all in all (the hub's)."""
        self.sent = 0
        """Bytes of input (the reader's)."""
        self.received = 0
        """Bytes of output (the hub's)."""
        self.taken = 0
        """Bytes of output (the reader's)."""


class Link:
    """The relay of one node, once it has proven itself."""

    def __init__(
        self, connection: socket.socket, address: str, proven: Proven, wake: Callable[[], None]
    ) -> None:
        self.name = proven.name
        self.connection = connection
        self.address = address
        self.lost = False
        self.rivals = ""
        """From where two relays called in by this name; "" while there is one."""
        self._sealer = proven.sealer
        self._opener = proven.opener
        self._outgoing = bytearray(proven.answer)
        self._wake = wake
        self._lock = threading.Lock()
        self._channels: dict[int, Channel] = {}
        self._count = 0

    # -- for the threads that talk with commands

    def start(self, argv: Sequence[str]) -> tuple[int, Channel]:
        """Have a command started; what becomes of it arrives in its channel."""
        body = msgspec.json.encode(list(argv))
        channel = Channel()
        with self._lock:
            self._count += 1
            number = self._count
            self._channels[number] = channel
        if self.lost:
            self._lose(channel)
        self.say(frames.START, number, body)
        return number, channel

    def say(self, kind: int, number: int, body: bytes = b"") -> None:
        """Send a frame soon; nothing happens on a lost connection."""
        with self._lock:
            if self.lost:
                return
            self._outgoing += self._sealer.seal(kind, number, body)
        self._wake()

    def forget(self, number: int) -> None:
        """End a command and hear no more of it."""
        with self._lock:
            self._channels.pop(number, None)
        self.say(frames.KILL, number)

    # -- for the hub's thread

    @property
    def has_more(self) -> bool:
        """Whether there is something left to send."""
        return bool(self._outgoing)

    def flush(self) -> None:
        """Send what fits; OSError when the connection is lost."""
        with self._lock, suppress(BlockingIOError):
            while self._outgoing:
                sent = self.connection.send(memoryview(self._outgoing)[:SEND].tobytes())
                del self._outgoing[:sent]

    def hear(self, data: bytes) -> None:
        """Hand on what the node said; RefusedError if it makes no sense."""
        for frame in self._opener.feed(data):
            channel = self._channels.get(frame.channel)
            if channel is not None:
                _apply(channel, frame)
                channel.news.set()

    def lose(self) -> None:
        """Tell every command's reader that nothing more will come."""
        with self._lock:
            self.lost = True
            channels = list(self._channels.values())
            self._outgoing.clear()
        for channel in channels:
            self._lose(channel)
        self.connection.close()

    @staticmethod
    def _lose(channel: Channel) -> None:
        channel.ended = channel.deaf = True
        channel.exited.set()
        channel.news.set()


def _apply(channel: Channel, frame: Frame) -> None:
    if frame.kind in (frames.OUT, frames.ERR):
        channel.received += len(frame.body)
        if channel.received - channel.taken > OUT_ROOM:
            raise frames.RefusedError("it sent more than there was room for")
        channel.arrived.append((frame.kind, frame.body))
    elif frame.kind == frames.OUT_END:
        channel.ended = True
    elif frame.kind == frames.DEAF:
        channel.deaf = True
    elif frame.kind == frames.MORE_IN:
        channel.granted += max(0, _number(frame.body))
    elif frame.kind == frames.EXIT:
        channel.status = _number(frame.body)
        channel.deaf = True
        channel.exited.set()


def _number(body: bytes) -> int:
    if len(body) != frames.NUMBER.size:
        raise frames.RefusedError("a frame is malformed")
    return int(frames.NUMBER.unpack(body)[0])
