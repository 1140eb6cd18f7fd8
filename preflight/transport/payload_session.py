"""The conversation with a payload on a node: its answers, or a sentence on what came instead.

TCP tells nobody that a cable was cut or that packets are dropped, so both ends count silence: the
payload leaves when no message came for the length of its lease, and we give up a little earlier on
a payload that promised to be heard and is not.

Ctrl-Z, a debugger, a machine that swaps or a laptop that slept: nodes hear nothing from us and
leave as they should, and our own deadlines pass while nobody watches them.
"""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from preflight.core.remote_command import ReachError
from preflight.core.text import last_line, legible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.core.remote_command import Answer, Remote


PYTHON_FLOOR: Final = (3, 8)
TOO_OLD: Final = 97
"""Exit status by which the boot line says that the node's Python is older than that."""

BOOTED: Final = b"@preflight booted"
"""The boot line writes this when the whole payload has arrived: from here on it is our code."""

CUT_SHORT: Final = "the payload was cut short"
"""The boot line's word for an input that ended too early."""

REFUSED: Final = 98
"""Exit status of a forced command of ours (`preflight.answer`) that turns a call away."""

NOT_EXECUTABLE, NOT_FOUND = 126, 127
OUT_OF_TIME = (124, 4)
"""timeout(1) after its SIGTERM; the payload's own alarm."""

LAPSED = 5
"""The payload's exit when it has not heard from us for the length of its lease."""

KILLED = 137
"""What a shell makes of SIGKILL: timeout's last word to the stubborn, or the kernel's."""

MOST_NOISE = 100_000
"""Lines that are not ours; millions of empty ones would keep us from hearing the other nodes."""

LAST_WORDS_S = 2.0
"""For the exit status and standard error of a payload that has stopped answering."""


class Talk:
    """One payload at work. Not for several threads at once, except `close`."""

    def __init__(self, remote: Remote, python: Sequence[str], nonce: str, timeout_s: float) -> None:
        self._remote = remote
        self._python = legible(" ".join(python), 80)
        self._program = python[0]
        self._mark = f"@preflight {nonce} ".encode()
        self._timeout_s = timeout_s
        self._booted = False
        self._noise = b""
        self._passed_over = 0

    def push(self, data: bytes) -> None:
        """Send bytes as they are. If the node takes no more, `read` will tell why."""
        try:
            self._remote.send(data, self._timeout_s)
        except TimeoutError as error:
            raise self._late(self._timeout_s) from error
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
        """The next answer's JSON; lines that are not ours are passed over.

        ReachError("python") if the node's Python never ran, ReachError("answer") if anything else
        came than an answer, or nothing in time; both end the payload.
        """
        document = self.hear(deadline_s)
        if document is None:
            raise self._late(deadline_s)
        return document

    def hear(self, within_s: float) -> bytes | None:
        """As `read`, but None when nothing comes within that time, and the payload works on."""
        ends = time.monotonic() + within_s
        while True:
            try:
                line = self._remote.read_line(max(0.0, ends - time.monotonic()))
            except TimeoutError:
                return None
            except ReachError:
                self.close()
                raise
            if line is None:
                raise self._ended(self._remote.wait(LAST_WORDS_S))
            if line.startswith(self._mark):
                return line[len(self._mark) :]
            if line.endswith(BOOTED):
                self._booted = True
            else:
                self._noise = line or self._noise
                self._passed_over += 1
            if self._passed_over > MOST_NOISE:
                raise self._endless()

    def _endless(self) -> ReachError:
        self.close()
        return ReachError(
            "answer",
            f"it wrote over {MOST_NOISE} lines where an answer was expected",
            "find what the login shell or a wrapper prints on every command, and silence it",
        )

    def _late(self, deadline_s: float) -> ReachError:
        """No answer in time: its last words may say what it waits for."""
        said = last_line(self._remote.wait(0.0).stderr) or legible(self._noise)
        where = "its payload" if self._booted else self._python
        return ReachError(
            "answer",
            f"{where} gave no answer in {deadline_s:.3g} s"
            + (f"; it said: {said}" if said else ""),
            "look at the node's load, at processes in D state, and at what its login shell does",
        )

    def _ended(self, answer: Answer) -> ReachError:
        """Name what came instead of an answer."""
        said = last_line(answer.stderr) or last_line(answer.stdout) or legible(self._noise)
        status = answer.status
        killed = status is not None and (status < 0 or status == KILLED)
        if status is None:
            sentence = "the connection broke before it answered"
            advice = "look at sshd and the kernel log on the node (out of memory, a restart)"
        elif status in OUT_OF_TIME or (killed and answer.seconds >= self._timeout_s):
            sentence = f"it was killed by its deadline of {self._timeout_s:.3g} s"
            advice = "look at the node's load and at processes in D state"
        elif killed:
            sentence = "it was killed by a signal before it answered"
            advice = "look at the kernel log on the node (out of memory?)"
        elif status == LAPSED and self._booted:
            sentence = "it left, because it no longer heard from this machine"
            advice = "look at the network on the way there, and whether this machine stood still"
        elif self._booted:
            sentence = f"the payload stopped with exit {status} before it answered"
            advice = "report what it said: this is a fault of preflight"
        elif status == REFUSED:
            sentence = "its forced command refused the call"
            advice = "install the same preflight there and here; see docs/preinstalled.md"
        elif status == 0:
            sentence = "something else answered"
            advice = "look for a forced command or a login shell that runs something else"
        else:
            return self._no_python(status, said)
        return ReachError("answer", sentence + _quoted(said), advice)

    def _no_python(self, status: int, said: str) -> ReachError:
        """The node's Python never came as far as our code."""
        if CUT_SHORT in said:
            return ReachError(
                "answer",
                f"{CUT_SHORT} on its way",
                "run again; if it stays, look at the connection and at what its login shell reads",
            )
        if status in (NOT_FOUND, NOT_EXECUTABLE) and self._lacks_timeout(said):
            return ReachError(
                "answer",
                "its timeout(1) cannot be run" + _quoted(said),
                "install coreutils on the node, or correct its PATH and the rights of timeout",
            )
        advice = (
            "install Python 3.8 or newer on the node, or name the job's with --preflight-python"
        )
        if status == TOO_OLD:
            sentence = f"{self._python}: {said}"
        elif status == NOT_FOUND:
            sentence = f"{self._python}: not found" + _quoted(said)
        elif status == NOT_EXECUTABLE:
            sentence = f"{self._python}: cannot be executed" + _quoted(said)
        else:
            sentence = f"{self._python}: did not start (exit {status})" + _quoted(said)
            # A start file that ends the shell, `exit 1` in .bashrc, looks the same from here.
            advice += "; if it starts by hand, look at what the login shell's start files do"
        return ReachError("python", sentence, advice)

    def _lacks_timeout(self, said: str) -> bool:
        """Whether a shell speaks of timeout itself, and not timeout of the Python it was given."""
        named = re.search(rf"(?<![\w./-]){re.escape(self._program)}(?![\w/-])", said)
        of_python = named or re.match(r"timeout: (failed to|can't)", said)
        return bool(re.search(r"\btimeout\b", said)) and not of_python


def _quoted(said: str) -> str:
    return f"; it said: {said}" if said else ""


LEASE_S = 15.0
"""The payload ends by itself after so long without a message; a request names it as `lease_s`."""

RENEW_S = 3.0
"""How often we say that we are there: four renewals may be lost or late."""

LOST_S = 12.0
"""Silence after which a line counts as lost. Less than the lease: a node that is cut off must be
known as the culprit before others leave on its account."""

_HELD_UP_S = 3.0
"""Between two looks; callers come by every second at least."""


class LeasedTalk(Protocol):
    """A conversation with a running payload. One thread speaks and listens; any may `close`."""

    def hear(self, within_s: float) -> bytes | None:
        """Return its next message as JSON; None if none comes in time, and it works on.

        WireError or ReachError once no more will come.
        """

    def send(self, message: Mapping[str, object]) -> None:
        """Send one JSON object."""

    def close(self) -> None:
        """End the payload, whatever it is doing. Never raises."""


class Leased:
    """Speaks for us while we listen or wait; for one thread, but for `close`."""

    def __init__(self, talk: LeasedTalk) -> None:
        self._talk = talk
        self._renewals = 0
        self._spoke = self._heard = self._looked = time.monotonic()
        self._watched = self._spared = False

    def watch(self) -> None:
        """From now on the payload says in time that it is alive; silence means a lost line."""
        self._watched = True
        self._heard = time.monotonic()

    def hear(self, within_s: float) -> bytes | None:
        """As the talk's, renewing the lease; ReachError("answer") when the line is lost.

        If we did not listen meanwhile (we were stopped), it gets half the time more, once.
        """
        self.renew()
        document = self._talk.hear(within_s)
        now = time.monotonic()
        held_up_s, self._looked = now - self._looked, now
        if document is not None:
            self._heard, self._spared = now, False
        elif self._watched and now - self._heard > LOST_S:
            if held_up_s > _HELD_UP_S and not self._spared:
                self._heard, self._spared = now - LOST_S / 2, True
                return None
            raise ReachError(
                "answer",
                f"the connection to it was lost: it said nothing for {LOST_S:g} s",
                "look whether the node is up and at the network between it and this machine",
            )
        return document

    def send(self, message: Mapping[str, object]) -> None:
        """Send one JSON object, which renews the lease as well."""
        self._spoke = time.monotonic()
        self._talk.send(message)

    def renew(self) -> None:
        """Say that we are there, if it is time; callers that do something else come by often."""
        if time.monotonic() - self._spoke >= RENEW_S:
            self._renewals += 1
            self.send({"renew": self._renewals})

    def close(self) -> None:
        """End the payload."""
        self._talk.close()


LEAST_S = 3.0
"""Shorter holes are any busy machine's, and cost nobody anything."""

_LOOK_S = 0.5
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Also counts while the machine sleeps, where there is such a clock (Linux)."""


def _now() -> float:
    return time.clock_gettime(_CLOCK)


class Standstill:
    """Looks at the clock twice a second, from `watch` to `close`."""

    def __init__(self) -> None:
        self._looked = _now()
        self._ended = 0.0
        self._longest_s = 0.0
        self._unforgiven_s = 0.0
        self._lock = threading.Lock()
        self._over = threading.Event()

    def watch(self) -> None:
        """Look from now on, in a thread."""
        self._looked = _now()
        threading.Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()

    def recent_s(self, within_s: float) -> float:
        """How long the last hole was, if it ended less than `within_s` ago; else 0."""
        self.look()
        return self._longest_s if _now() - self._ended < within_s else 0.0

    def forgive_s(self) -> float:
        """For how long we stood still since this was last asked."""
        self.look()
        with self._lock:
            seconds, self._unforgiven_s = self._unforgiven_s, 0.0
        return seconds

    def look(self) -> None:
        """Compare the clock with the last look; the first thread that runs again may ask."""
        with self._lock:
            now = _now()
            hole_s, self._looked = now - self._looked, now
            if not self._over.is_set() and hole_s > LEAST_S:
                self._ended, self._longest_s = now, hole_s
                self._unforgiven_s += hole_s

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.look()
