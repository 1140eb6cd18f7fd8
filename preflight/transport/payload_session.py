"""A session with the payload on a node: its answers, or an error that says what came instead.

TCP does not report a cut cable or dropped packets, so both ends measure silence: the payload exits
when no message came for the length of its lease, and the controller gives up a little earlier on a
payload that must report and does not.

Ctrl-Z, a debugger, swapping or a sleeping laptop suspend the controller: nodes then get no message
and exit, and the controller's own deadlines pass unobserved.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from preflight.core.remote_command import Answer, ReachError, Remote
from preflight.core.text import excerpt, last_line
from preflight.transport import reach_error, start_thread

PYTHON_FLOOR: Final = (3, 8)
TOO_OLD: Final = 97
"""The boot line's exit status if the node's Python is older than that."""

BOOTED: Final = b"@preflight booted"
"""The boot line writes this when the whole payload has arrived; from then on our code runs."""

CUT_SHORT: Final = "the payload was cut short"
"""The boot line's message for an input that ended too early."""

REFUSED: Final = 98
"""Exit status of preflight's forced command (`preflight.answer`) if it refuses a call."""

NOT_EXECUTABLE, NOT_FOUND = 126, 127
OUT_OF_TIME = (124, 4)
"""timeout(1) after its SIGTERM; the payload's own alarm."""

LAPSED = 5
"""The payload's exit status if no message came for the length of its lease."""

KILLED = 137
"""A shell's exit status for SIGKILL, by timeout(1) or by the kernel."""

MOST_NOISE = 100_000
"""Most lines that are not ours; millions of empty ones would hold up the other nodes."""

LAST_WORDS_S = 2.0
"""Wait for the exit status and standard error of a payload that has stopped answering."""


class PayloadSession:
    """A session with one payload. Not thread-safe, except `close`."""

    def __init__(self, remote: Remote, python: Sequence[str], nonce: str, timeout_s: float) -> None:
        self._remote = remote
        self._python = excerpt(" ".join(python), 80)
        self._program = python[0]
        self._mark = f"@preflight {nonce} ".encode()
        self._timeout_s = timeout_s
        self._booted = False
        self._noise = b""
        self._noise_lines = 0

    def push(self, data: bytes) -> None:
        """Send bytes unchanged. If the node takes no more, `read` raises the reason."""
        try:
            self._remote.send(data, self._timeout_s)
        except TimeoutError as error:
            raise self._late_error(self._timeout_s) from error
        except ReachError:
            return

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one JSON message."""
        self.push(msgspec.json.encode(message) + b"\n")

    def finish(self) -> None:
        """Say that no more messages will come."""
        self._remote.finish_input()

    def close(self) -> None:
        """End the payload, whatever it is doing. Never raises."""
        self._remote.kill()

    def read(self, deadline_s: float) -> bytes:
        """Return the next answer's JSON; lines that are not ours are skipped.

        ReachError("python") if the node's Python never ran, ReachError("answer") if something else
        came, or nothing in time; both end the payload.
        """
        document = self.receive(deadline_s)
        if document is None:
            raise self._late_error(deadline_s)
        return document

    def receive(self, within_s: float) -> bytes | None:
        """Return the next answer as `read` does, or None if none comes in time; both go on."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                line = self._remote.read_line(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                return None
            except ReachError:
                self.close()
                raise
            if line is None:
                raise self._end_error(self._remote.wait(LAST_WORDS_S))
            if line.startswith(self._mark):
                return line[len(self._mark) :]
            if line.endswith(BOOTED):
                self._booted = True
            else:
                self._noise = line or self._noise
                self._noise_lines += 1
            if self._noise_lines > MOST_NOISE:
                self.close()
                raise reach_error("endless", most=MOST_NOISE)

    def _late_error(self, deadline_s: float) -> ReachError:
        """Return the error for no answer in time; its last output may say what it waits for."""
        output = last_line(self._remote.wait(0.0).stderr) or excerpt(self._noise)
        where = "its payload" if self._booted else self._python
        return reach_error("late", where=where, deadline_s=deadline_s, output=_quoted(output))

    def _end_error(self, answer: Answer) -> ReachError:
        """Return the error that says what came instead of an answer."""
        output = last_line(answer.stderr) or last_line(answer.stdout) or excerpt(self._noise)
        status = answer.status
        killed = status is not None and (status < 0 or status == KILLED)
        if status is None:
            kind = "broken"
        elif status in OUT_OF_TIME or (killed and answer.seconds >= self._timeout_s):
            kind = "at_deadline"
        elif killed:
            kind = "killed"
        elif status == LAPSED and self._booted:
            kind = "lapsed"
        elif self._booted:
            kind = "stopped"
        elif status == REFUSED:
            kind = "forced_command"
        elif status == 0:
            kind = "something_else"
        else:
            return self._python_error(status, output)
        lasted = {"deadline_s": self._timeout_s, "lease_s": LEASE_S}
        return reach_error(kind, status=status, output=_quoted(output), **lasted)

    def _python_error(self, status: int, output: str) -> ReachError:
        """Return the error if the node's Python never ran our code."""
        if CUT_SHORT in output:
            return reach_error("cut_short", what=CUT_SHORT)
        if status in (NOT_FOUND, NOT_EXECUTABLE) and self._lacks_timeout(output):
            return reach_error("no_timeout", output=_quoted(output))
        kind, reason = "no_python", output
        if status == NOT_FOUND:
            reason = "not found" + _quoted(output)
        elif status == NOT_EXECUTABLE:
            reason = "cannot be executed" + _quoted(output)
        elif status != TOO_OLD:
            # A start file that ends the shell, `exit 1` in .bashrc, looks the same from here.
            kind, reason = "no_start", f"did not start (exit {status})" + _quoted(output)
        return reach_error(kind, python=self._python, reason=reason)

    def _lacks_timeout(self, output: str) -> bool:
        """Whether the shell's error is about timeout(1) itself, not about the Python it starts."""
        mention = re.search(rf"(?<![\w./-]){re.escape(self._program)}(?![\w/-])", output)
        of_python = mention or re.match(r"timeout: (failed to|can't)", output)
        return bool(re.search(r"\btimeout\b", output)) and not of_python


def _quoted(output: str) -> str:
    return f"; its output: {output}" if output else ""


LEASE_S = 15.0
"""The payload exits after so long without a message; a request names it as `lease_s`."""

RENEW_S = 3.0
"""How often the lease is renewed: four renewals may be lost or late."""

LOST_S = 12.0
"""Silence after which a connection counts as lost. Less than the lease: a node that is cut off must
be known as the culprit before other nodes stop because of it."""

_SUSPENDED_S = 3.0
"""Longest time between two calls; callers come at least every second."""


class MessageSession(Protocol):
    """A session with a running payload. One thread sends and reads; any may `close`."""

    def receive(self, within_s: float) -> bytes | None:
        """Return its next message as JSON; None if none comes in time.

        WireError or ReachError once no more can come.
        """

    def send(self, message: Mapping[str, object]) -> None:
        """Send one JSON object."""

    def close(self) -> None:
        """End the payload, whatever it is doing. Never raises."""


class LeasedSession:
    """A session that renews the payload's lease; for one thread, except `close`."""

    def __init__(self, session: MessageSession) -> None:
        self._session = session
        self._renewals = 0
        self._last_sent = self._last_message = self._last_call = time.monotonic()
        self._watched = self._extended = False

    def watch(self) -> None:
        """Expect regular messages from now on; silence means a lost connection."""
        self._watched = True
        self._last_message = time.monotonic()

    def receive(self, within_s: float) -> bytes | None:
        """Return its next message and renew the lease; ReachError("answer") on a lost connection.

        If this process was suspended meanwhile, the payload gets half the time more, once.
        """
        self.renew()
        document = self._session.receive(within_s)
        now = time.monotonic()
        was_suspended, self._last_call = now - self._last_call > _SUSPENDED_S, now
        if document is not None:
            self._last_message, self._extended = now, False
        elif self._watched and now - self._last_message > LOST_S:
            if self._extended or not was_suspended:
                raise reach_error("silent", seconds=LOST_S)
            self._last_message, self._extended = now - LOST_S / 2, True
        return document

    def send(self, message: Mapping[str, object]) -> None:
        """Send one JSON object, which also renews the lease."""
        self._last_sent = time.monotonic()
        self._session.send(message)

    def renew(self) -> None:
        """Renew the lease if it is time; callers must call this often."""
        if time.monotonic() - self._last_sent >= RENEW_S:
            self._renewals += 1
            self.send({"renew": self._renewals})

    def close(self) -> None:
        """End the payload."""
        self._session.close()


LEAST_GAP_S = 3.0
"""Shorter gaps happen on any busy machine and do no harm."""

_TICK_S = 0.5
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""This clock also counts while the machine sleeps (Linux)."""


def _now() -> float:
    return time.clock_gettime(_CLOCK)


class SuspendDetector:
    """Detects that this process was suspended: it reads the clock twice a second."""

    def __init__(self) -> None:
        self._last_reading = _now()
        self._ended_at = 0.0
        self._last_gap_s = 0.0
        self._unreported_s = 0.0
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def watch(self) -> None:
        """Start to watch, in a thread."""
        self._last_reading = _now()
        start_thread(self._watch)

    def close(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def recent_s(self) -> float:
        """Return the length of the last suspension if it ended within the lease; else 0."""
        self.check()
        return self._last_gap_s if _now() - self._ended_at < LEASE_S else 0.0

    def take_suspended_s(self) -> float:
        """Return how long this process was suspended since the last call of this method."""
        self.check()
        with self._lock:
            seconds, self._unreported_s = self._unreported_s, 0.0
        return seconds

    def check(self) -> None:
        """Compare the clock with the last reading; any thread may call it first after a pause."""
        with self._lock:
            now = _now()
            gap_s, self._last_reading = now - self._last_reading, now
            if not self._stopped.is_set() and gap_s > LEAST_GAP_S:
                self._ended_at, self._last_gap_s = now, gap_s
                self._unreported_s += gap_s

    def _watch(self) -> None:
        while not self._stopped.wait(_TICK_S):
            self.check()
