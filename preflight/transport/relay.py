"""Where all relays of a run call in: one port, one thread, however many nodes there are."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preflight.transport.relay.frames import RefusedError
from preflight.transport.relay.hello import Hello
from preflight.transport.relay.link import Link

if TYPE_CHECKING:
    from collections.abc import Collection

READ = 256 << 10
GREETING_S = 10.0
"""After which a caller that has not proven itself is hung up on."""

STRANGERS = 256
"""Callers beyond the expected ones that may be greeted at once."""

BACKLOG = 4096
"""Calls that wait for us in the kernel: any user of a node can fill 128, and then a relay waits."""

TICK_S = 0.5
STALL_MS = 20_000
"""After which the kernel gives up a relay that takes no bytes."""


@dataclass
class _Caller:
    """Somebody who has not proven himself yet."""

    connection: socket.socket
    address: str
    hello: Hello
    until: float


class Hub:
    """Listens, proves callers, carries all frames. `links` has each node's relay by its name."""

    def __init__(
        self, expected: Collection[str], secret: bytes, ports: range | None = None
    ) -> None:
        self._expected = frozenset(expected)
        self._secret = secret
        self._listener = _listen(ports, len(self._expected))
        self.port = int(self._listener.getsockname()[1])
        self.links: dict[str, Link] = {}
        self.changed = threading.Condition()
        """Notified when a relay has called in or is lost."""
        self._callers: dict[socket.socket, _Caller] = {}
        """The oldest first."""
        self._closing = False
        self._awake = False
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.settimeout(0.0)
        self._wake_in.settimeout(0.0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="preflight-hub", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hang up on everybody: each relay then ends its commands and itself. Never raises."""
        self._closing = True
        self._wake(force=True)
        self._thread.join(TICK_S * 4)

    def notify(self) -> None:
        """Have whoever waits for `changed` look again."""
        with self.changed:
            self.changed.notify_all()

    def _wake(self, *, force: bool = False) -> None:
        if force or not self._awake:
            self._awake = True
            with suppress(OSError):
                self._wake_in.send(b"!")

    def _serve(self) -> None:
        try:
            while not self._closing:
                for link in list(self.links.values()):
                    self._watch(link)
                for key, events in self._selector.select(TICK_S):
                    self._turn(key, events)
                self._hang_up_on_the_slow()
        finally:
            self._leave()

    def _watch(self, link: Link) -> None:
        """Ask for room to write only while there is something to write."""
        if link.lost:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.has_more else 0)
        if self._selector.get_key(link.connection).events != events:
            self._selector.modify(link.connection, events, link)

    def _turn(self, key: selectors.SelectorKey, events: int) -> None:
        if key.fileobj is self._listener:
            self._accept()
        elif isinstance(key.data, _Caller):
            self._greet(key.data)
        elif isinstance(key.data, Link):
            self._carry(key.data, events)
        else:
            self._awake = False
            with suppress(OSError):
                self._wake_out.recv(4096)

    def _accept(self) -> None:
        with suppress(OSError):
            connection, (address, *_) = self._listener.accept()
            if len(self._callers) >= len(self._expected) + STRANGERS:
                self._make_room()
            connection.settimeout(0.0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALL_MS)
            hello = Hello(self._secret, self._expected)
            address = str(address).removeprefix("::ffff:")
            caller = _Caller(connection, address, hello, time.monotonic() + GREETING_S)
            self._selector.register(connection, selectors.EVENT_READ, caller)
            self._callers[connection] = caller
            connection.send(hello.opening)  # fits into any empty socket

    def _make_room(self) -> None:
        """Hang up on the oldest caller from where most of them call: a flood costs only itself."""
        [(crowd, _)] = Counter(each.address for each in self._callers.values()).most_common(1)
        self._refuse(next(each for each in self._callers.values() if each.address == crowd))

    def _greet(self, caller: _Caller) -> None:
        try:
            data = caller.connection.recv(512)
            proven = caller.hello.feed(data) if data else None
        except BlockingIOError:
            return
        except (OSError, RefusedError):
            self._refuse(caller)
            return
        first = self.links.get(proven.name) if proven else None
        if first is not None and not first.lost:
            # All relays know one secret: one of these two is another node, and nobody knows which.
            first.rivals = f"{first.address} and {caller.address}"
            self._lose(first)
        if not data or first is not None:
            self._refuse(caller)
        elif proven:
            self._callers.pop(caller.connection, None)
            link = Link(caller.connection, caller.address, proven, self._wake)
            self._selector.modify(caller.connection, selectors.EVENT_READ, link)
            with self.changed:
                self.links[link.name] = link
                self.changed.notify_all()

    def _refuse(self, caller: _Caller) -> None:
        self._callers.pop(caller.connection, None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(caller.connection)
        caller.connection.close()

    def _hang_up_on_the_slow(self) -> None:
        for caller in list(self._callers.values()):
            if time.monotonic() > caller.until:
                self._refuse(caller)

    def _carry(self, link: Link, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                link.flush()
            if events & selectors.EVENT_READ:
                data = link.connection.recv(READ)
                if data:
                    link.hear(data)
                else:
                    self._lose(link)
        except BlockingIOError:
            return
        except (OSError, RefusedError):
            self._lose(link)

    def _lose(self, link: Link) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(link.connection)
        with self.changed:
            link.lose()
            self.changed.notify_all()

    def _leave(self) -> None:
        self._listener.close()
        for connection in self._callers:
            connection.close()
        for link in self.links.values():
            link.lose()
        self._selector.close()
        self._wake_out.close()
        self._wake_in.close()
        self.notify()


def _listen(ports: range | None, callers: int) -> socket.socket:
    """Open a port on all addresses; `ports`: the only ones that a firewall lets through."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    trouble = OSError("no free port")
    for port in ports or (0,):
        try:
            listener = socket.create_server(
                ("", port), family=family, backlog=max(BACKLOG, callers), dualstack_ipv6=both
            )
        except OSError as error:
            trouble = error
        else:
            listener.settimeout(0.0)
            return listener
    raise trouble
