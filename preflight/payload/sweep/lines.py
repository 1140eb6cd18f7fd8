"""The agent's line to its controller: what it is told, that both are alive, and the end of it."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import threading
import time

import lease
import start
import wire

from . import process_groups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .clocks import Stalls

    Read = Callable[[float], "dict[str, Any] | None"]
    Emit = Callable[["dict[str, Any]"], None]


_LAST_WORDS_S = 0.5


class Orders:
    """The controller's lines, each to whom it concerns."""

    def __init__(self) -> None:
        self.go: queue.Queue[dict[str, Any]] = queue.Queue()
        self.more: queue.Queue[dict[str, Any]] = queue.Queue()
        """Rounds after the last one."""
        self.shared: queue.Queue[dict[str, Any]] = queue.Queue()
        """Renewals and the numbers of lost nodes: for the store, if we host it."""

    def take(self, message: dict[str, Any]) -> None:
        """Hand over one line; "finish" is the last one."""
        if "finish" in message:
            lease.leave()
        elif "go" in message:
            self.go.put(message["go"])
        elif "more" in message:
            self.more.put(message["more"])
            self.shared.put({"rounds": len(message["more"]["turns"])})
        else:
            self.shared.put(message)


def hold(request: dict[str, Any], read_line: Read, emit: Emit) -> tuple[Orders, lease.Lease]:
    """Listen and beat from now on, in threads; they end the process when its time has come."""
    orders, kept = Orders(), lease.Lease(request.get("lease_s"))
    for work, arguments in (
        (_attend, (read_line, kept, orders, emit)),
        (_beat, (kept, emit)),
        (_end_after, (request["deadline_s"],)),
    ):
        threading.Thread(target=work, args=arguments, daemon=True).start()
    return orders, kept


def _attend(read_line: Read, kept: lease.Lease, orders: Orders, emit: Emit) -> None:
    """Take the controller's lines; without a controller nothing here has a purpose."""
    status = start.BROKE
    try:
        ended = lease.attend(read_line, kept, orders.take)
        status = start.DONE if ended == lease.CLOSED else start.LAPSED
        if ended == process_groups.STORE:
            error = f"the sweep's store was silent for {kept.seconds:g} s"
            lapsed = {"event": "lapsed", "error": error}
            last_words = threading.Thread(target=emit, args=(lapsed,), daemon=True)
            last_words.start()
            last_words.join(_LAST_WORDS_S)  # nobody may be reading any more
    finally:
        lease.leave(status)


def _beat(kept: lease.Lease, emit: Emit) -> None:
    """Say that this agent is alive: its controller cannot see a line that died without a sound."""
    if kept.seconds is None:
        return
    try:
        while True:
            time.sleep(kept.seconds / lease.BEATS)
            emit({"event": "alive"})
    except wire.Gone:
        lease.leave()


def _end_after(deadline_s: float) -> None:
    time.sleep(deadline_s)
    lease.leave()


def ending(status: int) -> str:
    """How a process ended, by its wait status: "was killed by SIGKILL"."""
    if not os.WIFSIGNALED(status):
        return f"ended by itself with status {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    try:
        return f"was killed by {signal.Signals(number).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {number}"


_CHUNK = 65536


class Reader:
    """Reads JSON lines from a pipe, with a deadline for each."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._pending = b""

    def next(self, within_s: float | None, stalls: Stalls | None = None) -> dict[str, Any] | None:
        """Return the next object; None at the end of the pipe; TimeoutError when late.

        A `within_s` of None waits for ever. `stalls` looks after the writer meanwhile.
        """
        deadline = None if within_s is None else time.monotonic() + within_s
        while b"\n" not in self._pending:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._readable(left, stalls):
                raise TimeoutError
            chunk = os.read(self.descriptor, _CHUNK)
            if not chunk:
                return None
            self._pending += chunk
        line, self._pending = self._pending.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line.decode("ascii"))
        return message

    def _readable(self, left_s: float | None, stalls: Stalls | None) -> bool:
        if stalls is not None and left_s is not None:
            return stalls.wait(self.descriptor, left_s)
        return bool(select.select([self.descriptor], [], [], left_s)[0])


def write(descriptor: int, document: dict[str, Any]) -> None:
    """Write one object as one line, whole, however long it is. One writer per pipe."""
    data = json.dumps(document, separators=(",", ":")).encode("ascii") + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]
