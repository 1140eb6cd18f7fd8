"""Whether the job's ports can be taken here and reached from there; tried, and given back."""

from __future__ import annotations

import os
import queue
import threading
import time

import lease
import start
import wire
from probe.text import clean, words

from . import bind, connect, holder
from .listen import Listeners

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    Message = dict[str, Any]

MARGIN_S = 3.0
"""What is kept of the node's time for closing up and the answer."""

MOST_DATA_PORTS = 16


def run(
    request: Message, lines: Callable[[float], Message | None], emit: Callable[[Message], None]
) -> None:
    """Listen, connect, close; emit one `Ports` document: preflight.facts.ports, docs/wire.md."""
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
            tried = connect.try_all(message["targets"], nonce, until)
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
            self.master["free_again"] = bind.is_free(self.master["port"])


def _take(port: int, taken: list[socket.socket]) -> Message:
    """Bind the master port, or say who has it; the listener is added to `taken`."""
    try:
        taken.append(bind.listener(port))
    except OSError as error:
        return {"port": port, "bound": False, "error": words(error), **holder.find(port)}
    return {"port": port, "bound": True}


def _ephemeral_listener() -> socket.socket | None:
    try:
        return bind.listener(0)
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
