"""Answers the other nodes of this run at the job's ports; nobody else can keep it busy."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time

from . import connect

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
        self._greeting, self._reply = connect.greeting(nonce), connect.reply(nonce, node)
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
                known = connect.same(peer.said, self._greeting)
                if not known and not connect.is_preflight(peer.said):
                    return self._drop(peer)
                peer.socket.send(self._reply if known else connect.OTHER_RUN)
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
