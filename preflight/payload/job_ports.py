"""Tests whether the job's ports can be bound here and reached from other nodes.

It really listens and connects, so that a firewall, or another program on a port, shows before the
job. The nonce itself is never sent, since another program may receive it.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import queue
import selectors
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import start
from probe import processes, procfs
from probe.node_files import clean, words
from probe.processes import Allowances, Care, Describer
from start import Emit, Message, Read

_OPENING = b"preflight hello "

OTHER_RUN = b"preflight here " + b"0" * 64 + b"\n"
"""The reply to another run's node: a reset would look like a firewall's."""


def greeting(nonce: str) -> bytes:
    """Return the line that a connecting node sends first."""
    return _OPENING + _mark(nonce, "hello")


def reply(nonce: str, node: str) -> bytes:
    """Return the line with which that node's listener answers."""
    return b"preflight here " + _mark(nonce, f"here is {node}")


def _mark(nonce: str, text: str) -> bytes:
    digest = hmac.new(nonce.encode(), text.encode("utf-8", "replace"), "sha256").hexdigest()
    return digest.encode("ascii") + b"\n"


CONNECT_S = 3.0
"""Time limit for a connection, and again for the reply."""

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
"""A local firewall that rejects gives EPERM or EACCES, one on the path EHOSTUNREACH."""


class _OtherProgramError(Exception):
    """Another program than this run's listener accepted the connection."""


def try_all(targets: list[Message], nonce: str, until: float) -> list[dict[str, Any]]:
    """Try every target, 64 at a time, and return one `Attempt` of the document for each, in order.

    Those not done by `until` (a name service that hangs) are reported as timed out.
    """
    pool = ThreadPoolExecutor(AT_ONCE)  # its threads end with this process, which uses os._exit
    tries = [pool.submit(_try, target, nonce) for target in targets]
    wait(tries, max(0.0, until - time.monotonic()))
    error = "not done in time: name lookup, or too many"
    return [
        _attempt(target, "timeout", error) if job.cancel() or not job.done() else job.result()
        for target, job in zip(targets, tries)  # noqa: B905 (Python 3.8)
    ]


def _try(target: Message, nonce: str) -> dict[str, Any]:
    began = time.monotonic()
    result, error = "ok", ""
    try:
        _converse(target, nonce)
    except _OtherProgramError as other:
        result, error = "wrong_answer", str(other)
    except socket.timeout:
        result, error = "timeout", f"no connection within {CONNECT_S:.0f} s"
    except OSError as failure:
        # The codes of a name that is not found (EAI_...) are negative, and so none of these.
        result = _WORDS.get(failure.errno or 0, "error")
        error = failure.strerror or str(failure)
    except (ValueError, OverflowError) as failure:
        result, error = "error", str(failure)
    return _attempt(target, result, error, (time.monotonic() - began) * 1000)


def _attempt(target: Message, result: str, error: str, ms: float = 0.0) -> dict[str, Any]:
    return {
        "target": target["node"],
        "port": target["port"],
        "kind": target["kind"],
        "result": result,
        "error": clean(error),
        "ms": round(ms, 3),
    }


def _converse(target: Message, nonce: str) -> None:
    """Connect, send the greeting, read the reply, and close first: TIME_WAIT stays on this side."""
    expected = reply(nonce, target["node"])
    address = (target["address"], target["port"])
    with socket.create_connection(address, timeout=CONNECT_S) as connection:
        if connection.getsockname() == connection.getpeername():
            # Linux can connect an ephemeral port to itself when no program listens there.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        connection.sendall(greeting(nonce))
        received = _receive(connection, len(expected))
    if not hmac.compare_digest(received, expected):
        ending = "closed without a reply" if not received else "gave another reply"
        raise _OtherProgramError(f"another program accepted and {ending}")


def _receive(connection: socket.socket, length: int) -> bytes:
    until = time.monotonic() + CONNECT_S
    received = b""
    while len(received) < length:
        connection.settimeout(max(0.001, until - time.monotonic()))
        try:
            chunk = connection.recv(length - len(received))
        except socket.timeout:
            ending = f"no reply in {CONNECT_S:.0f} s" if not received else "another reply"
            raise _OtherProgramError(f"a program accepted, but gave {ending}") from None
        if not chunk:
            break
        received += chunk
    return received


HELLO_S = 3.0
"""How long a peer may take to send its greeting, and then to close."""

LINGER_S = 2.0
"""How long peers that got their reply may take to close, once we stop."""

MOST_PEERS = 512
"""Most open connections: with more, the oldest one is dropped."""

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER for an abrupt close: no TIME_WAIT on our side, so the port is free at once."""


class _Peer:
    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.received = b""
        self.answered = False
        self.until = time.monotonic() + HELLO_S


class Listeners:
    """Serves all listening sockets of this node in a thread, until `close`."""

    def __init__(self, listening: list[socket.socket], nonce: str, node: str) -> None:
        self._listening = listening
        self._greeting, self._reply = greeting(nonce), reply(nonce, node)
        self._peers: dict[int, _Peer] = {}
        self._selector = selectors.DefaultSelector()
        self._stop, self._stopper = os.pipe()
        self._selector.register(self._stop, selectors.EVENT_READ)
        for server in listening:
            self._selector.register(server, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Peers that got their reply may close first; the others are reset."""
        os.write(self._stopper, b"!")
        self._thread.join(LINGER_S + 1.0)

    def _serve(self) -> None:
        while self._turn():
            pass
        for server in self._listening:
            self._selector.unregister(server)
            server.close()
        until = time.monotonic() + LINGER_S
        self._selector.unregister(self._stop)
        for peer in [peer for peer in self._peers.values() if not peer.answered]:
            self._drop(peer)
        while self._peers and time.monotonic() < until:
            self._turn()
        for peer in list(self._peers.values()):
            self._drop(peer)

    def _turn(self) -> bool:
        """Handle all events that are due; False after `close`."""
        for key, _ in self._selector.select(timeout=0.25):
            if key.fd == self._stop:
                return False
            if key.data is None:
                self._accept(key.fileobj)
            elif key.data.socket.fileno() >= 0:  # not dropped earlier in this turn
                self._receive(key.data)
        now = time.monotonic()
        for expired in [peer for peer in self._peers.values() if peer.until < now]:
            self._drop(expired)
        return True

    def _accept(self, listening: object) -> None:
        for _ in range(64):
            if len(self._peers) >= MOST_PEERS:
                self._drop(next(iter(self._peers.values())))
            try:
                connection, _ = listening.accept()  # type: ignore[attr-defined]
            except OSError:
                return  # no more peers, or the peer is gone already
            connection.settimeout(0)
            peer = self._peers[connection.fileno()] = _Peer(connection)
            self._selector.register(connection, selectors.EVENT_READ, peer)

    def _receive(self, peer: _Peer) -> None:
        try:
            chunk = peer.socket.recv(256)
            if not chunk:
                return self._leave(peer)
            peer.received += chunk
            length = len(self._greeting)
            if peer.answered or len(peer.received) > length:
                return self._drop(peer)
            if len(peer.received) == length:
                is_ours = hmac.compare_digest(peer.received, self._greeting)
                if not is_ours and not peer.received.startswith(_OPENING):
                    return self._drop(peer)
                peer.socket.send(self._reply if is_ours else OTHER_RUN)
                peer.answered, peer.until = True, time.monotonic() + HELLO_S
        except BlockingIOError:
            return None
        except OSError:
            return self._leave(peer)
        return None

    def _drop(self, peer: _Peer) -> None:
        """Reset a connection."""
        with contextlib.suppress(OSError):
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._leave(peer)

    def _leave(self, peer: _Peer) -> None:
        del self._peers[peer.socket.fileno()]
        self._selector.unregister(peer.socket)
        peer.socket.close()


BACKLOG = 4096
"""Every node of the fleet may connect to the master at the same moment."""


def listener(port: int) -> socket.socket:
    """Listen on every address, IPv6 and IPv4 where both exist; OSError with the reason if it fails.

    Never SO_REUSEADDR: a port with lingering connections must fail.
    """
    try:
        return _listening(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT):
            raise
    return _listening(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 (as the job's store does)


def is_free(port: int, patience_s: float = 1.0) -> bool:
    """Whether the port can be bound again; it is released at once.

    The last acknowledgements of closed connections may take up to `patience_s`.
    """
    until = time.monotonic() + patience_s
    while True:
        with contextlib.suppress(OSError):
            listener(port).close()
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.02)


def _listening(family: int, address: str, port: int) -> socket.socket:
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((address, port))
        server.listen(BACKLOG)
    except OSError:
        server.close()
        raise
    server.settimeout(0)
    return server


LOOKUP_S = 4.0
"""Time limit for the lookup, in a child: reading a stuck process can hang."""


def find(port: int) -> dict[str, Any]:
    """Return `holder` (a `Process`, or None) and `lingering` of the document for a taken port."""
    until = time.monotonic() + LOOKUP_S
    search = processes.GuardedSurvey(partial(_find, port, os.getpid()), set())
    return search.finish(until, []) or {"holder": None, "lingering": 0}


def _find(port: int, run_pid: int, care: Care) -> dict[str, Any]:
    rows = [row for row in procfs.tcp() if row.port == port]
    opened = [row for row in rows if row.inode != "0"]
    first = min(opened, key=lambda row: row.state != procfs.LISTEN, default=None)
    holder = first and _holder(first, run_pid, care)
    return {"holder": holder, "lingering": len(rows) - len(opened)}


def _holder(row: procfs.Socket, run_pid: int, care: Care) -> dict[str, Any]:
    everyone, allowances = care.everyone(), Allowances()
    describer = Describer(everyone, run_pid, care)
    process = {"pid": 0, "ppid": 0, "state": "", "command": "", "age_s": 0.0}
    process["user"] = describer.user(row.uid)
    for pid in sorted(everyone):
        opened = allowances.open_files(pid)
        if opened and row.inode in opened.sockets:
            stat = everyone[pid]
            care.mark(pid)
            environ = None if care.untouchable(stat) else procfs.environ(pid)
            process = describer.describe(stat, environ)
            break
    process["listens"] = [row.port] if row.state == procfs.LISTEN else []
    return process


MARGIN_S = 3.0
"""Time that is reserved for closing the listeners and sending the answer."""

MOST_DATA_PORTS = 16


def run(request: Message, lines: Read, emit: Emit) -> None:
    """Listen, connect, close; emit one `Ports` document (docs/internals/wire.md)."""
    began = time.monotonic()
    until = began + float(request["deadline_s"]) - MARGIN_S
    nonce, port = request["nonce"], request.get("master_port")
    orders: queue.Queue[Message] = queue.Queue()
    lease = start.Lease(request.get("lease_s"))

    def attend() -> None:  # without a controller, this process must end
        reason = start.attend(lines, lease, orders.put)
        start.leave(start.DONE if reason == start.CLOSED else start.LAPSED)

    threading.Thread(target=attend, daemon=True).start()
    bound, master = (None, None) if port is None else _take(port)
    servers = [bound] if bound else []
    for _ in range(min(MOST_DATA_PORTS, request["data_ports"])):
        with contextlib.suppress(OSError):
            servers.append(listener(0))
    data_ports = [server.getsockname()[1] for server in servers if server is not bound]
    listeners = Listeners(servers, nonce, request["name"])
    emit({"listening": data_ports, "master_bound": bound is not None})
    attempts: list[Message] = []
    finished = False
    while not finished:
        message = orders.get()
        if "targets" in message:
            results = try_all(message["targets"], nonce, until)
            attempts += results
            emit({"tried": len(results)})
        finished = bool(message.get("finish"))
    listeners.close()
    if master and port and bound:
        master["free_again"] = is_free(port) or _is_another_runs(port)
    emit(
        {
            "wire": start.VERSION,
            "nonce": nonce,
            "host": clean(os.uname().nodename),
            "seconds": round(time.monotonic() - began, 3),
            "master": master,
            "attempts": attempts,
        }
    )


OTHER_RUN_S, FREED_S = 6.0, 1.0
"""How long to wait for another run of preflight that tests the same port, and for it to be free."""


def _take(port: int) -> tuple[socket.socket | None, Message]:
    """Bind the master port, or find its holder; return the listener, and the document."""
    until = time.monotonic() + OTHER_RUN_S
    freed_until = time.monotonic() + FREED_S
    while True:
        try:
            return listener(port), {"port": port, "bound": True}
        except OSError as error:
            if _is_another_runs(port):
                freed_until = min(until, time.monotonic() + FREED_S)
            if error.errno != errno.EADDRINUSE or time.monotonic() > freed_until:
                taken = {"port": port, "bound": False, "error": words(error), **find(port)}
                return None, taken
            time.sleep(0.1)


def _is_another_runs(port: int) -> bool:
    """Whether a listener of another run of preflight has the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=FREED_S) as connection:
            connection.sendall(greeting(""))
            return connection.recv(len(OTHER_RUN)).startswith(OTHER_RUN[:16])
    except OSError:
        return False
