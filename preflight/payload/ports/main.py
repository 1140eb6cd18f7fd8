"""Whether the job's ports can be taken here and reached from there; tried, and given back."""

from __future__ import annotations

import errno
import os
import queue
import socket
import threading
import time

import lease
import start
import wire
from probe import guard, procfs
from probe.processes import Describer
from probe.text import clean, words

from . import connections
from .connections import Listeners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


BACKLOG = 4096
"""Every node of the fleet may knock at the master in the same instant."""


def listener(port: int) -> socket.socket:
    """Listen on every address, IPv6 and IPv4 where both exist; OSError says why it cannot be.

    Never SO_REUSEADDR: a port whose old connections linger must show.
    """
    try:
        return _listening(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT):
            raise
    return _listening(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 (as the job's store does)


def is_free(port: int, patience_s: float = 1.0) -> bool:
    """Whether the port could be taken once more, and give it back.

    The last acknowledgements of connections that ended well may still be on their way.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            listener(port).close()
        except OSError:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        else:
            return True


def _listening(family: int, address: str, port: int) -> socket.socket:
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        taken.bind((address, port))
        taken.listen(BACKLOG)
    except OSError:
        taken.close()
        raise
    taken.settimeout(0)
    return taken


LOOKUP_S = 4.0
"""Reading a stuck process can hang: the lookup runs in a child with this long."""


def find(port: int) -> dict[str, Any]:
    """Return `holder` (a `Process`, or None) and `lingering` of the document for a taken port."""
    asked = guard.spawn(_find, port, os.getpid())
    answered = asked.listen(time.monotonic() + LOOKUP_S)
    asked.dismiss(kill=not answered)
    try:
        found: dict[str, Any] = asked.value()
    except guard.BrokenError:
        return {"holder": None, "lingering": 0}
    return found


def _find(port: int, run_pid: int) -> dict[str, Any]:
    here = [one for one in procfs.tcp() if one.port == port]
    open_ones = [one for one in here if one.inode != "0"]
    open_ones.sort(key=lambda one: one.state != procfs.LISTEN)
    holder = _holder(open_ones[0], run_pid) if open_ones else None
    return {"holder": holder, "lingering": len(here) - len(open_ones)}


def _holder(held: procfs.Socket, run_pid: int) -> dict[str, Any]:
    everyone = procfs.everyone()
    describer = Describer(everyone, run_pid, lambda _: False, lambda _: None)
    for pid in sorted(everyone):
        opened = procfs.opened(pid)
        if opened and held.inode in opened.sockets:
            process = describer.describe(everyone[pid], procfs.environ(pid))
            process["listens"] = [held.port] if held.state == procfs.LISTEN else []
            return process
    return {
        "pid": 0,
        "ppid": 0,
        "state": "",
        "user": describer.user(held.uid),
        "command": "",
        "age_s": 0.0,
        "listens": [held.port] if held.state == procfs.LISTEN else [],
    }


if TYPE_CHECKING:
    Message = dict[str, Any]

MARGIN_S = 3.0
"""What is kept of the node's time for closing up and the answer."""

MOST_DATA_PORTS = 16


def run(
    request: Message, lines: Callable[[float], Message | None], emit: Callable[[Message], None]
) -> None:
    """Listen, connect, close; emit one `Ports` document: preflight.facts.model, docs/wire.md."""
    began = time.monotonic()
    until = began + float(request["deadline_s"]) - MARGIN_S
    nonce = request["nonce"]
    orders: queue.Queue[Message] = queue.Queue()
    kept = lease.Lease(request.get("lease_s"))
    threading.Thread(target=_attend, args=(lines, kept, orders.put), daemon=True).start()
    stage = _Stage(request)
    emit({"listening": stage.data_ports, "master_bound": stage.bound})
    attempts: list[Message] = []
    finished = False
    while not finished:
        message = orders.get()
        if "targets" in message:
            tried = connections.try_all(message["targets"], nonce, until)
            attempts += tried
            emit({"tried": len(tried)})
        finished = bool(message.get("finish"))
    stage.close()
    low, high = _ephemeral()
    emit(
        {
            "wire": wire.VERSION,
            "nonce": nonce,
            "host": clean(os.uname().nodename),
            "seconds": round(time.monotonic() - began, 3),
            "ephemeral_low": low,
            "ephemeral_high": high,
            "listening": stage.data_ports,
            "master": stage.master,
            "attempts": attempts,
        }
    )


def _attend(
    lines: Callable[[float], Message | None],
    kept: lease.Lease,
    take: Callable[[Message], None],
) -> None:
    """Without a controller nothing here has a purpose: the kernel closes our ports."""
    ended = lease.attend(lines, kept, take)
    start.leave(start.DONE if ended == lease.CLOSED else start.LAPSED)


class _Stage:
    """The listeners of one node, from the first bind to the proof that the port is free again."""

    def __init__(self, request: Message) -> None:
        port = request.get("master_port")
        taken: list[socket.socket] = []
        self.master = None if port is None else _take(port, taken)
        self.bound = bool(taken)
        data = [_ephemeral_listener() for _ in range(min(MOST_DATA_PORTS, request["data_ports"]))]
        listening = [one for one in data if one is not None]
        self.data_ports = [one.getsockname()[1] for one in listening]
        self._listeners = Listeners(taken + listening, request["nonce"], request["name"])

    def close(self) -> None:
        """Stop listening and prove that the master port can be taken once more."""
        self._listeners.close()
        if self.master and self.bound:
            self.master["free_again"] = is_free(self.master["port"])


def _take(port: int, taken: list[socket.socket]) -> Message:
    """Bind the master port, or say who has it; the listener is added to `taken`."""
    try:
        taken.append(listener(port))
    except OSError as error:
        return {"port": port, "bound": False, "error": words(error), **find(port)}
    return {"port": port, "bound": True}


def _ephemeral_listener() -> socket.socket | None:
    try:
        return listener(0)
    except OSError:
        return None


def _ephemeral() -> tuple[int, int]:
    """Return the range the kernel draws local ports from; (0, 0) if it does not say."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            low, high = file.read().split()
    except (OSError, ValueError):
        return 0, 0
    return int(low), int(high)
