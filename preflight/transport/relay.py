"""The controller's side of Slurm's relays: they connect, authenticate and run our commands.

The node's side is `preflight/payload/node_relay.py`; docs/internals/wire.md describes the protocol.
"""

from __future__ import annotations

import hmac
import os
import selectors
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from preflight.errors import PreflightError
from preflight.transport import start_thread

START, STDIN, EOF, KILL, MORE_OUT = 1, 2, 3, 4, 5
OUT, ERR, OUT_END, EXIT, MORE_IN, DEAF = 16, 17, 18, 19, 20, 21
"""Frames of the controller, and of the node. DEAF: the command reads no more input."""

HEAD: Final = struct.Struct("!BII")
NUMBER: Final = struct.Struct("!i")
TAG = 16
FRAME: Final = HEAD.size + TAG
"""Bytes of a frame besides its body."""

LARGEST = 256 << 10
"""Bytes of a body; a longer frame is refused before it is read."""


class RefusedError(PreflightError):
    """The other side failed to authenticate, or broke the protocol."""


class Sealer:
    """Turns our messages into authenticated frames."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def seal(self, kind: int, channel: int, body: bytes = b"") -> bytes:
        """Return the bytes of our next frame."""
        plain = HEAD.pack(kind, channel, len(body)) + body
        tag = _tag(self._key, self._count, plain)
        self._count += 1
        return plain + tag


class Opener:
    """Reads authenticated frames from bytes as they arrive."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield (kind, channel, body) of each complete frame.

        RefusedError if one is forged, replayed or too long.
        """
        self._buffer += data
        while len(self._buffer) >= HEAD.size:
            kind, channel, length = HEAD.unpack_from(self._buffer)
            if length > LARGEST:
                raise RefusedError("a frame is too long")
            whole = HEAD.size + length
            if len(self._buffer) < whole + TAG:
                return
            plain = bytes(self._buffer[:whole])
            tag = bytes(self._buffer[whole : whole + TAG])
            del self._buffer[: whole + TAG]
            if not hmac.compare_digest(tag, _tag(self._key, self._count, plain)):
                raise RefusedError("a frame's signature is wrong")
            self._count += 1
            yield kind, channel, plain[HEAD.size :]


def _tag(key: bytes, count: int, plain: bytes) -> bytes:
    return hmac.digest(key, count.to_bytes(8, "big") + plain, "sha256")[:TAG]


GREETING: Final = b"preflight relay 1\n"
RANDOM = 32
PROOF = 32


class Hello:
    """One caller's greeting: `opening` is sent to it, `feed` takes its answer."""

    def __init__(self, secret: bytes, expected: Container[str]) -> None:
        self._secret = secret
        self._expected = expected
        self._random = os.urandom(RANDOM)
        self._received = bytearray()

    @property
    def opening(self) -> bytes:
        """The greeting to the caller: random for each, so that no old answer fits."""
        return GREETING + self._random

    def feed(self, data: bytes) -> RelayIdentity | None:
        """Take some bytes; return the caller once it has proven its name, RefusedError if not."""
        self._received += data
        if not self._received or len(self._received) < 1 + self._received[0] + RANDOM + PROOF:
            return None
        length = self._received[0]
        word = bytes(self._received[1 : 1 + length])
        their_random = bytes(self._received[1 + length : 1 + length + RANDOM])
        proof = bytes(self._received[1 + length + RANDOM :])
        expected = self._mac(b"relay\0" + word + self._random + their_random)
        if not hmac.compare_digest(proof, expected):
            raise RefusedError("a caller does not know this run's secret")
        name = word.decode("utf-8", "replace")
        if name not in self._expected:
            raise RefusedError("a caller is not one of the expected nodes")
        return RelayIdentity(
            name,
            self._mac(b"controller\0" + word + their_random + self._random),
            Sealer(self._mac(b"from controller\0" + self._random + their_random)),
            Opener(self._mac(b"from relay\0" + self._random + their_random)),
        )

    def _mac(self, message: bytes) -> bytes:
        return hmac.digest(self._secret, message, "sha256")


class RelayIdentity(NamedTuple):
    """A caller that has proven to be a node's relay; `answer` authenticates us to it."""

    name: str
    answer: bytes
    sealer: Sealer
    opener: Opener


IN_ROOM = 256 << 10
OUT_ROOM = 1 << 20
"""Bytes that may be in flight to a command, and of frames from it; as in node_relay.py."""

SEND_BYTES = 256 << 10


class Channel:
    """One command. Each field is written by one thread only, the hub's or the reader's."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        """Set by the hub on every change."""
        self.output: deque[tuple[int, bytes]] = deque()
        """(OUT or ERR, bytes), in the order in which they came."""
        self.ended = False
        """No more output will come."""
        self.input_closed = False
        """It takes no more input."""
        self.exited = threading.Event()
        self.status: int | None = None
        self.granted = IN_ROOM
        """Bytes of input for which the node has granted room, in total (the hub's)."""
        self.sent = 0
        """Bytes of input (the reader's)."""
        self.received = 0
        """Bytes of the frames of output and ends (the hub's)."""
        self.consumed = 0
        """Bytes of the frames of output (the reader's)."""


@dataclass
class Caller:
    """A caller that has not authenticated yet."""

    connection: socket.socket
    address: str
    hello: Hello
    until: float


class Link:
    """The authenticated connection to one node's relay."""

    def __init__(self, caller: Caller, identity: RelayIdentity, wake: Callable[[], None]) -> None:
        self.name = identity.name
        self.connection, self.address = caller.connection, caller.address
        self.lost = False
        self.claimants = ""
        """Addresses of two relays that claim this name; "" while there is one."""
        self.fault = ""
        """How it broke the protocol, so that it was cut off."""
        self._sealer = identity.sealer
        self._opener = identity.opener
        self.outgoing = bytearray(identity.answer)
        """Bytes that are left to send."""
        self._wake = wake
        self._lock = threading.Lock()
        self._channels: dict[int, Channel] = {}
        self._forgotten: dict[int, int] = {}
        """Bytes that may still come for each forgotten command, by its channel."""
        self._count = 0

    # -- for the threads that run commands

    def start(self, argv: Sequence[str]) -> tuple[int, Channel]:
        """Start a command; its output and end arrive in its channel."""
        body = msgspec.json.encode(list(argv))
        channel = Channel()
        with self._lock:
            self._count += 1
            number = self._count
            self._channels[number] = channel
        if self.lost:
            self._end(channel)
        self.send(START, number, body)
        return number, channel

    def send(self, kind: int, number: int, body: bytes = b"") -> None:
        """Send a frame soon; nothing happens on a lost connection."""
        with self._lock:
            if self.lost:
                return
            self.outgoing += self._sealer.seal(kind, number, body)
        self._wake()

    def forget(self, number: int) -> None:
        """End a command and drop all that still comes from it."""
        with self._lock:
            self._forgotten[number] = 2 * OUT_ROOM
            self._channels.pop(number, None)
        self.send(KILL, number)

    # -- for the hub's thread

    def flush(self) -> None:
        """Send what fits; OSError when the connection is lost."""
        with self._lock, suppress(BlockingIOError):
            while self.outgoing:
                sent = self.connection.send(memoryview(self.outgoing)[:SEND_BYTES].tobytes())
                del self.outgoing[:sent]

    def receive(self, data: bytes) -> None:
        """Pass the node's frames to their channels; RefusedError if they break the protocol."""
        for kind, number, body in self._opener.feed(data):
            channel = self._channels.get(number)
            if channel is not None:
                _apply(channel, kind, body)
                channel.changed.set()
                continue
            allowance = self._forgotten.get(number, 0) - FRAME - len(body)
            if allowance < 0:
                raise RefusedError("it sent a frame of a command that does not run")
            self._forgotten[number] = allowance

    def disconnect(self) -> None:
        """Close it; every command's reader learns that nothing more comes."""
        with self._lock:
            self.lost = True
            channels = list(self._channels.values())
            self.outgoing.clear()
        for channel in channels:
            self._end(channel)
        self.connection.close()

    def _end(self, channel: Channel) -> None:
        if self.fault:
            channel.output.append((ERR, f"\n{self.fault}\n".encode()))
        channel.ended = channel.input_closed = True
        channel.exited.set()
        channel.changed.set()


def _apply(channel: Channel, kind: int, body: bytes) -> None:
    if kind == MORE_IN:
        count = _unpack_number(body)
        if not 0 < count <= channel.sent + IN_ROOM - channel.granted:
            raise RefusedError("it took more input than was sent")
        channel.granted += count
        return
    channel.received += FRAME + len(body)
    if channel.received - channel.consumed > OUT_ROOM:
        raise RefusedError("it sent more output than was allowed")
    if kind in (OUT, ERR) and body:
        channel.output.append((kind, body))
    elif kind == OUT_END:
        channel.ended = True
    elif kind == DEAF:
        channel.input_closed = True
    elif kind == EXIT:
        channel.status = _unpack_number(body)
        channel.input_closed = True
        channel.exited.set()
    else:
        raise RefusedError("it sent a frame of an unknown kind")


def _unpack_number(body: bytes) -> int:
    if len(body) != NUMBER.size:
        raise RefusedError("a frame is malformed")
    return int(NUMBER.unpack(body)[0])


TURN_BYTES = 16 << 10
"""Bytes that are read from a relay before all others have their turn."""

GREETING_S = 10.0
"""Deadline for a caller to authenticate."""

MOST_STRANGERS = 256
"""Callers, besides the expected ones, that may be greeted at once."""

BACKLOG = 4096
"""Connections that may wait in the kernel: any user of a node can fill 128, and relays wait."""

TICK_S = 0.5
STALL_MS = 20_000
"""The kernel drops a relay that takes no bytes for this long."""


class RelayHub:
    """Accepts and authenticates callers, moves all frames. `links`: each node's relay by name."""

    def __init__(
        self, expected: Collection[str], secret: bytes, ports: range | None = None
    ) -> None:
        self._expected = frozenset(expected)
        self._secret = secret
        self._listener = _listen(ports, len(self._expected))
        self.port = int(self._listener.getsockname()[1])
        self.links: dict[str, Link] = {}
        self.changed = threading.Condition()
        """Notified when a relay has connected or is lost."""
        self._callers: dict[socket.socket, Caller] = {}
        """The oldest first."""
        self._closing = False
        self._wake_sent = False
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.settimeout(0.0)
        self._wake_in.settimeout(0.0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._thread = start_thread(self._serve, name="preflight-hub")

    def close(self) -> None:
        """Close all connections: each relay then ends its commands and itself. Never raises."""
        self._closing = True
        self._wake(force=True)
        self._thread.join(TICK_S * 4)

    def notify(self) -> None:
        """Wake all threads that wait for `changed`."""
        with self.changed:
            self.changed.notify_all()

    def _wake(self, *, force: bool = False) -> None:
        if force or not self._wake_sent:
            self._wake_sent = True
            with suppress(OSError):
                self._wake_in.send(b"!")

    def _serve(self) -> None:
        try:
            while not self._closing:
                for link in list(self.links.values()):
                    self._watch(link)
                for key, events in self._selector.select(TICK_S):
                    self._handle(key, events)
                for caller in list(self._callers.values()):
                    if time.monotonic() > caller.until:
                        self._refuse(caller)
        finally:
            self._close_all()

    def _watch(self, link: Link) -> None:
        """Wait for write events only while there is data to send."""
        if link.lost:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.outgoing else 0)
        if self._selector.get_key(link.connection).events != events:
            self._selector.modify(link.connection, events, link)

    def _handle(self, key: selectors.SelectorKey, events: int) -> None:
        if key.fileobj is self._listener:
            self._accept()
        elif isinstance(key.data, Caller):
            self._greet(key.data)
        elif isinstance(key.data, Link):
            self._move_frames(key.data, events)
        else:
            self._wake_sent = False
            with suppress(OSError):
                self._wake_out.recv(4096)

    def _accept(self) -> None:
        free = len(self._expected) + MOST_STRANGERS - len(self._callers)
        if free <= 0:
            self._make_room()
        with suppress(OSError):  # such as BlockingIOError: no more callers
            # Beyond that, one caller a turn: each can answer before it must make room.
            for _ in range(max(1, free)):
                connection, (address, *_) = self._listener.accept()
                self._admit(connection, str(address).removeprefix("::ffff:"))

    def _admit(self, connection: socket.socket, address: str) -> None:
        connection.settimeout(0.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALL_MS)
        hello = Hello(self._secret, self._expected)
        caller = Caller(connection, address, hello, time.monotonic() + GREETING_S)
        self._selector.register(connection, selectors.EVENT_READ, caller)
        self._callers[connection] = caller
        with suppress(OSError):  # it hung up already: `_greet` sees that
            connection.send(hello.opening)  # fits into any empty socket

    def _make_room(self) -> None:
        """Drop the oldest caller of the busiest address: a flood harms only its own address."""
        [(busiest, _)] = Counter(caller.address for caller in self._callers.values()).most_common(1)
        self._refuse(next(caller for caller in self._callers.values() if caller.address == busiest))

    def _greet(self, caller: Caller) -> None:
        try:
            data = caller.connection.recv(512)
            identity = caller.hello.feed(data) if data else None
        except BlockingIOError:
            return
        except (OSError, RefusedError):
            self._refuse(caller)
            return
        earlier = self.links.get(identity.name) if identity else None
        if earlier is not None and not earlier.lost:
            # All relays share one secret: one of these two is another node, unknown which.
            earlier.claimants = f"{earlier.address} and {caller.address}"
            self._disconnect(earlier)
        if not data or earlier is not None:
            self._refuse(caller)
        elif identity:
            self._callers.pop(caller.connection, None)
            link = Link(caller, identity, self._wake)
            self._selector.modify(caller.connection, selectors.EVENT_READ, link)
            with self.changed:
                self.links[link.name] = link
                self.changed.notify_all()

    def _refuse(self, caller: Caller) -> None:
        self._callers.pop(caller.connection, None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(caller.connection)
        caller.connection.close()

    def _move_frames(self, link: Link, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                link.flush()
            if events & selectors.EVENT_READ:
                data = link.connection.recv(TURN_BYTES)
                if data:
                    link.receive(data)
                else:
                    self._disconnect(link)
        except BlockingIOError:
            return
        except (OSError, RefusedError) as error:
            if isinstance(error, RefusedError):
                link.fault = f"its relay was cut off: {error}"
            self._disconnect(link)

    def _disconnect(self, link: Link) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(link.connection)
        with self.changed:
            link.disconnect()
            self.changed.notify_all()

    def _close_all(self) -> None:
        self._listener.close()
        for connection in self._callers:
            connection.close()
        for link in self.links.values():
            link.disconnect()
        self._selector.close()
        self._wake_out.close()
        self._wake_in.close()
        self.notify()


def _listen(ports: range | None, callers: int) -> socket.socket:
    """Open a port on all addresses; `ports`: the only ones that a firewall lets through."""
    dual_stack = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual_stack else socket.AF_INET
    trouble = OSError("no free port")
    for port in ports or (0,):
        try:
            listener = socket.create_server(
                ("", port), family=family, backlog=max(BACKLOG, callers), dualstack_ipv6=dual_stack
            )
        except OSError as error:
            trouble = error
        else:
            listener.settimeout(0.0)
            return listener
    raise trouble


MOST_LOOKUPS = 8
"""Nodes whose route is looked up: they share a network, and a lookup may take seconds."""

_DISCARD = 9  # any port will do: nothing is sent there


def own_addresses(nodes: Iterable[str]) -> list[str]:
    """Return our addresses on the routes to some nodes, the most frequent first."""
    counts = Counter(chain.from_iterable(map(addresses_towards, list(nodes)[:MOST_LOOKUPS])))
    return sorted(counts, key=lambda own: (own.startswith("127.") or own == "::1", -counts[own]))


def addresses_towards(node: str) -> Iterator[str]:
    """Yield our own addresses on the routes to another host; none without a route or a host."""
    with suppress(OSError, UnicodeError):
        for family, kind, protocol, _, target in socket.getaddrinfo(
            node, _DISCARD, type=socket.SOCK_DGRAM
        ):
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # a datagram socket: finds the route, sends nothing
                yield str(probe.getsockname()[0])
