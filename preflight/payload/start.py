"""The payload's entry point: reads the request, runs an entry, and always ends in time.

Each message is one JSON line marked with the run's nonce, so that a login banner cannot look like
one.

A node works only while its controller renews a lease: a cut cable or a firewall that drops packets
does not close a connection, so silence must end us. The clock is this node's CLOCK_MONOTONIC,
independent of the date.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import sys
import time
from _thread import allocate_lock
from typing import Any, Callable, Dict, Optional

import children

Message = Dict[str, Any]
Read = Callable[[float], Optional[Message]]
"""Returns the controller's next message within some seconds; None when it is gone."""
Emit = Callable[[Message], None]

VERSION = 1
"""Version of the wire protocol: docs/internals/wire.md."""

GRACE_S = 2.0
"""The alarm comes this long after an entry's own deadline."""

DONE, WRONG_REQUEST, BROKE, LATE, LAPSED = 0, 2, 3, 4, 5
"""Exit statuses: answered (or the controller is gone), wrong request, a bug of ours, out of time,
or no message from the controller for the length of the lease."""

_ENTRIES = {"outputs": "tool_outputs", "ports": "job_ports", "relay": "node_relay"}
_ENTRIES.update((name, name + ".main") for name in ("burn", "probe", "stacks", "sweep"))
"""The module of each entry."""


def main(entry: str) -> None:
    """Run one entry (`probe`, `ports`, `sweep`) over standard input and output. Never returns."""
    try:
        status = _serve(entry)
    except Gone:
        status = DONE
    except Exception as error:  # noqa: BLE001 (the controller gets one line, not a traceback)
        _report_error(error)
        status = BROKE
    leave(status)


def leave(status: int) -> None:
    """End our children by pid, then this process, without waiting."""
    children.end_all()
    os._exit(status)


def _serve(entry: str) -> int:
    channel = Channel()
    request = channel.next()
    if request is None:
        return DONE
    if entry not in _ENTRIES or not isinstance(request.get("nonce"), str):
        print(f"preflight: no entry {entry!a}, or a request without nonce", file=sys.stderr)
        return WRONG_REQUEST
    channel.nonce = request["nonce"]
    # End when time is up, or when `timeout` or the login session sends a signal.
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: leave(LATE))
    signal.setitimer(signal.ITIMER_REAL, float(request["deadline_s"]) + GRACE_S)
    run = __import__(_ENTRIES[entry], fromlist=["run"]).run
    run(request, channel.next, channel.emit)
    return DONE


def _report_error(error: Exception) -> None:
    """Print the error's class and place in one line; its text may contain a secret."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}" if trace else "?"
    text = f"preflight: the payload broke: {type(error).__name__} in {place}\n"
    os.write(2, text.encode("ascii", "replace"))


LINE_LIMIT = 4 << 20
"""Longest line we read from the controller, bytes."""


class Gone(Exception):  # noqa: N818 (an ending, not an error)
    """The controller closed its end of the connection."""


class Reader:
    """Reads JSON lines from a pipe, with a deadline for each."""

    def __init__(self, descriptor: int, limit: float = math.inf) -> None:
        self.descriptor = descriptor
        self._limit = limit
        self._pending = bytearray()

    def next(
        self, within_s: float | None = None, wait: Callable[[int, Any], bool] | None = None
    ) -> Message | None:
        """Return the next object; None at the end of the stream.

        TimeoutError if none is complete within `within_s` (None: no limit); it can still come
        later. `wait` replaces select(2).
        """
        deadline = None if within_s is None else time.monotonic() + within_s
        while b"\n" not in self._pending:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not (wait or _readable)(self.descriptor, left_s):
                raise TimeoutError
            chunk = os.read(self.descriptor, 65536)
            if not chunk or len(self._pending) > self._limit:
                return None
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        message = json.loads(line.decode())
        if not isinstance(message, dict):
            raise TypeError("a message must be a JSON object: preflight and its payload differ")
        return message


def _readable(descriptor: int, within_s: float | None) -> bool:
    return bool(select.select([descriptor], [], [], within_s)[0])


def write(descriptor: int, document: Message, mark: str = "") -> None:
    """Write one object as one complete line of ASCII, however long it is."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    line = memoryview(f"{mark}{text}\n".encode("ascii"))
    while line:
        line = line[os.write(descriptor, line) :]


class Channel(Reader):
    """Standard input and output. Reading and writing may happen in two threads."""

    def __init__(self) -> None:
        super().__init__(0, LINE_LIMIT)
        self.nonce = ""
        self._writing = allocate_lock()

    def emit(self, document: Message) -> None:
        """Write one whole message; Gone if the controller has closed its end."""
        with self._writing:
            try:
                write(1, document, f"@preflight {self.nonce} ")
            except OSError as error:
                raise Gone from error


BEATS = 5
"""Heartbeats of an agent per lease."""

_CHECK_S = 0.5
"""Interval at which the lease is checked while no message comes."""

_STOPPED_S = 3.0
"""A longer gap between two checks means that this process was stopped: no scheduler delays more."""

CLOSED, LINE = "closed", "line"


class Lease:
    """The sources that must all renew this process's lease, and the last renewal of each."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        """None: the lease never lapses."""
        self._renewed = {LINE: time.monotonic()}
        self._checked_s = time.monotonic()
        self._is_extended = False

    def renew(self, source: str) -> None:
        """Renew a source; after its first renewal, the lease depends on it."""
        self._renewed[source] = time.monotonic()
        self._is_extended = False

    def lapsed(self) -> str:
        """Return a source that did not renew the lease in time, or ""; call it often.

        If this process itself was delayed (stopped, or by a library that blocks the interpreter),
        it could not read messages meanwhile: the lease is extended by half of it, once.
        """
        if self.seconds is None:
            return ""
        now_s = time.monotonic()
        gap_s, self._checked_s = now_s - self._checked_s, now_s
        renewed = dict(self._renewed)  # another thread may add to it
        silent = [name for name, renewed_s in renewed.items() if now_s - renewed_s > self.seconds]
        if silent and gap_s > _STOPPED_S and not self._is_extended:
            self._is_extended = True
            self._renewed.update(dict.fromkeys(silent, now_s - self.seconds / 2))
            return ""
        return silent[0] if silent else ""


def attend(
    lines: Callable[[float], Message | None], lease: Lease, take: Callable[[Message], None]
) -> str:
    """Pass the controller's messages to `take` while the lease holds; return what ended it.

    Any message renews `LINE`. "closed" if the controller closed, else the source that lapsed.
    """
    while True:
        try:
            message = lines(_CHECK_S)
        except TimeoutError:
            pass
        else:
            if message is None:
                return CLOSED
            lease.renew(LINE)
            take(message)
        source = lease.lapsed()
        if source:
            return source
