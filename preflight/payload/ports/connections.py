"""Listens at the job's ports, and connects to those of the other nodes as ranks will.

The nonce itself never crosses the wire, since other listeners may hear what we say.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import selectors
import socket
import struct
import threading
import time

from probe.text import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_OPENING = b"preflight hello "

OTHER_RUN = b"preflight here " + b"0" * 64 + b"\n"
"""What another run's node hears, rather than a reset that would look like a firewall's."""


def greeting(nonce: str) -> bytes:
    """Return the line a connecting node says first."""
    return _OPENING + _mark(nonce, "hello")


def reply(nonce: str, node: str) -> bytes:
    """Return the line with which that node's listener answers."""
    return b"preflight here " + _mark(nonce, f"here is {node}")


def is_preflight(heard: bytes) -> bool:
    """Whether a wrong greeting is at least one of some preflight run."""
    return heard.startswith(_OPENING)


def same(heard: bytes, expected: bytes) -> bool:
    """Compare without telling a listener-in how much was right."""
    return hmac.compare_digest(heard, expected)


def _mark(nonce: str, text: str) -> bytes:
    digest = hmac.new(nonce.encode(), text.encode("utf-8", "replace"), "sha256").hexdigest()
    return digest.encode("ascii") + b"\n"


if TYPE_CHECKING:
    Target = dict[str, Any]

CONNECT_S = 3.0
"""For one connection, and again for the answer."""

AT_ONCE = 64

_WORDS = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.ENETUNREACH: "unreachable",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETDOWN: "unreachable",
    errno.EHOSTDOWN: "unreachable",
    errno.EACCES: "unreachable",
    errno.EPERM: "unreachable",
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
}
"""A local firewall that rejects shows as EPERM or EACCES, one on the way as EHOSTUNREACH."""


class _NotOursError(Exception):
    """Somebody accepted who is not this run's listener on that node."""


def try_all(targets: list[Target], nonce: str, until: float) -> list[dict[str, Any]]:
    """Try every target, 64 at a time, and return one `Attempt` of the document for each, in order.

    Those not done by `until` (a name service that hangs) are told as timed out.
    """
    attempts = [
        _attempt(target, "timeout", "not done in time: name lookup, or too many")
        for target in targets
    ]
    waiting = iter(range(len(targets)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                at = next(waiting, None)
            if at is None or time.monotonic() > until:
                return
            attempts[at] = _try(targets[at], nonce)

    threads = [
        threading.Thread(target=work, daemon=True) for _ in range(min(AT_ONCE, len(targets)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return list(attempts)


def _try(target: Target, nonce: str) -> dict[str, Any]:
    began = time.monotonic()
    result, error = "ok", ""
    try:
        _converse(target, nonce)
    except _NotOursError as stranger:
        result, error = "wrong_answer", str(stranger)
    except socket.timeout:
        result, error = "timeout", f"no connection within {CONNECT_S:.0f} s"
    except OSError as failure:
        known = not isinstance(failure, socket.gaierror) and failure.errno in _WORDS
        result = _WORDS[failure.errno or 0] if known else "error"
        error = failure.strerror or str(failure)
    except (ValueError, OverflowError) as failure:
        result, error = "error", str(failure)
    return _attempt(target, result, error, (time.monotonic() - began) * 1000)


def _attempt(target: Target, result: str, error: str, ms: float = 0.0) -> dict[str, Any]:
    return {
        "target": target["node"],
        "port": target["port"],
        "kind": target["kind"],
        "result": result,
        "error": clean(error),
        "ms": round(ms, 3),
    }


def _converse(target: Target, nonce: str) -> None:
    """Connect, greet, hear the reply, and close first: TIME_WAIT stays on this side."""
    expected = reply(nonce, target["node"])
    address = (target["address"], target["port"])
    with socket.create_connection(address, timeout=CONNECT_S) as taken:
        if taken.getsockname() == taken.getpeername():
            # Linux can connect an ephemeral port to itself when nobody listens there.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        taken.sendall(greeting(nonce))
        heard = _heard(taken, len(expected))
    if not same(heard, expected):
        how = "closed without a word" if not heard else "gave another answer"
        raise _NotOursError(f"somebody else accepted and {how}")


def _heard(taken: socket.socket, length: int) -> bytes:
    until = time.monotonic() + CONNECT_S
    heard = b""
    while len(heard) < length:
        taken.settimeout(max(0.001, until - time.monotonic()))
        try:
            chunk = taken.recv(length - len(heard))
        except socket.timeout:
            how = f"said nothing for {CONNECT_S:.0f} s" if not heard else "gave another answer"
            raise _NotOursError(f"somebody accepted and {how}") from None
        if not chunk:
            break
        heard += chunk
    return heard


HELLO_S = 3.0
"""How long a peer may take to say its greeting, and then to close."""

MOST_PEERS = 512
"""Open at once. When full, the one that has kept us waiting longest is dropped."""

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER for an abrupt close: no TIME_WAIT on our side, so the port is free at once."""


class _Peer:
    def __init__(self, taken: socket.socket) -> None:
        self.socket = taken
        self.said = b""
        self.answered = False
        self.until = time.monotonic() + HELLO_S


class Listeners:
    """A thread that serves all listening sockets of this node until `close`."""

    def __init__(self, listening: list[socket.socket], nonce: str, node: str) -> None:
        self._listening = listening
        self._greeting, self._reply = greeting(nonce), reply(nonce, node)
        self._peers: dict[int, _Peer] = {}
        self._selector = selectors.DefaultSelector()
        self._stop, self._stopper = os.pipe()
        self._selector.register(self._stop, selectors.EVENT_READ)
        for one in listening:
            self._selector.register(one, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self, linger_s: float = 2.0) -> None:
        """Stop listening. Peers that were answered may close first; the rest is reset."""
        os.write(self._stopper, f"{linger_s}\n".encode("ascii"))
        self._thread.join(linger_s + 1.0)

    def _serve(self) -> None:
        while self._turn():
            pass
        for one in self._listening:
            self._selector.unregister(one)
            one.close()
        until = time.monotonic() + float(os.read(self._stop, 64))
        self._selector.unregister(self._stop)
        self._stop_waiting_for_the_silent()
        while self._peers and time.monotonic() < until:
            self._turn()
        for peer in list(self._peers.values()):
            self._drop(peer)

    def _turn(self) -> bool:
        """Do what is due; False when told to stop."""
        for key, _ in self._selector.select(timeout=0.25):
            if key.fd == self._stop:
                return False
            if key.data is None:
                self._accept(key.fileobj)
            elif key.data.socket.fileno() >= 0:  # not dropped earlier in this turn
                self._hear(key.data)
        now = time.monotonic()
        for late in [peer for peer in self._peers.values() if peer.until < now]:
            self._drop(late)
        return True

    def _accept(self, listening: object) -> None:
        for _ in range(64):
            if len(self._peers) >= MOST_PEERS:
                self._drop(next(iter(self._peers.values())))
            try:
                taken, _ = listening.accept()  # type: ignore[attr-defined]
            except OSError:
                return  # nobody more, or gone before we looked
            taken.settimeout(0)
            peer = self._peers[taken.fileno()] = _Peer(taken)
            self._selector.register(taken, selectors.EVENT_READ, peer)

    def _hear(self, peer: _Peer) -> None:
        try:
            chunk = peer.socket.recv(256)
            if not chunk:
                return self._leave(peer)
            peer.said += chunk
            wanted = len(self._greeting)
            if peer.answered or len(peer.said) > wanted:
                return self._drop(peer)
            if len(peer.said) == wanted:
                known = same(peer.said, self._greeting)
                if not known and not is_preflight(peer.said):
                    return self._drop(peer)
                peer.socket.send(self._reply if known else OTHER_RUN)
                peer.answered, peer.until = True, time.monotonic() + HELLO_S
        except BlockingIOError:
            return None
        except OSError:
            return self._leave(peer)
        return None

    def _stop_waiting_for_the_silent(self) -> None:
        for peer in [peer for peer in self._peers.values() if not peer.answered]:
            self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        """End a connection that is not ours to end politely."""
        with contextlib.suppress(OSError):
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._leave(peer)

    def _leave(self, peer: _Peer) -> None:
        del self._peers[peer.socket.fileno()]
        self._selector.unregister(peer.socket)
        peer.socket.close()
