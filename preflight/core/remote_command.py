"""A talk with a command that can neither deadlock, nor hang, nor fill our memory.

Both outputs are drained whenever we wait for anything, so a command that floods one of them while
we write to it or read the other never blocks. What carries the bytes is the subclass's business.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from preflight.transport.intake import Intake
from preflight.transport.protocol import SEND_S, ReachError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.transport.protocol import Answer

KILL_AFTER_S = 2
"""A command that ignores its deadline's SIGTERM for this long gets SIGKILL."""

SLACK_S = 5.0
"""How much later than the remote deadline the local one falls: KILL_AFTER_S and the way back."""

GRACE_S = 0.5
"""Silence after the exit that ends reading: a grandchild may hold the pipes open for ever."""

TICK_S = 0.1
"""How often a command's exit is looked for while its output stays silent."""


TIMED_OUT = 124
"""Exit status of timeout(1): it may be quicker than a clock that was started after it."""


def deadlined(argv: Sequence[str], timeout_s: float) -> list[str]:
    """Put a command under a deadline of its own, which holds even when nobody waits for it."""
    return ["timeout", "-k", str(KILL_AFTER_S), str(max(1, math.ceil(timeout_s))), *argv]


class StreamRemote(ABC):
    """A `Remote` over any pair of byte streams."""

    def __init__(self, timeout_s: float, limit: int) -> None:
        self._intake = Intake(limit)
        self._began = time.monotonic()
        self._expires = self._began + timeout_s + SLACK_S

    @abstractmethod
    def _write(self, data: memoryview) -> int:
        """Write what fits without blocking, 0 if nothing does; OSError if nobody reads any more."""

    @abstractmethod
    def _move(self, wait_s: float, *, writing: bool) -> bool:
        """Take what has arrived into the intake, waiting at most that long for something to do.

        `writing`: room to write counts as something too. Returns whether anything arrived.
        """

    @abstractmethod
    def _exited(self, wait_s: float) -> bool:
        """Whether the command's exit is known, waiting at most that long for it."""

    @abstractmethod
    def _leave(self) -> int | None:
        """End what still runs, release everything, return the status if it is known."""

    @abstractmethod
    def finish_input(self) -> None:
        """Close the command's standard input."""

    def kill(self) -> None:
        """End the command and forget it."""
        self._leave()

    def send(self, data: bytes, deadline_s: float = SEND_S) -> None:
        """Write it all, taking output meanwhile; see `Remote.send`."""
        ends = self._ends(deadline_s)
        left = memoryview(data)
        while left:
            written = self._write_or_gone(left)
            left = left[written:]
            if not written:
                self._take(ends, writing=True)

    def read_line(self, deadline_s: float) -> bytes | None:
        """Return the next line of standard output; see `Remote.read_line`."""
        ends = self._ends(deadline_s)
        quiet_since: float | None = None
        while (line := self._intake.take_line()) is None:
            if self._intake.overflow:
                raise self._too_much()
            if self._intake.ended or _past(quiet_since, GRACE_S):
                return None
            moved = self._take(ends)
            quiet_since = self._quiet(quiet_since, moved=moved)
        return line

    def wait(self, deadline_s: float) -> Answer:
        """Collect the rest and the status; see `Remote.wait`."""
        ends = self._ends(deadline_s)
        quiet_since: float | None = None
        try:
            while not (self._intake.ended or self._intake.overflow or _past(quiet_since, GRACE_S)):
                moved = self._take(ends)
                quiet_since = self._quiet(quiet_since, moved=moved)
            if not self._intake.overflow:
                self._exited(max(0.0, ends - time.monotonic()))
        except TimeoutError:
            pass  # the status, or that there is none, tells the rest
        status = self._leave()
        return self._intake.answer(status, time.monotonic() - self._began)

    def _ends(self, deadline_s: float) -> float:
        return min(time.monotonic() + deadline_s, self._expires)

    def _write_or_gone(self, data: memoryview) -> int:
        try:
            return self._write(data)
        except OSError as error:
            raise ReachError(
                "answer",
                "it stopped reading before it had everything we sent",
                "see what it wrote to standard error",
            ) from error

    def _take(self, ends: float, *, writing: bool = False) -> bool:
        """Move bytes once; TimeoutError when there is no time left, and nothing had arrived.

        A pause of this machine may let the time pass while the answer waits to be read.
        """
        left_s = max(0.0, ends - time.monotonic())
        moved = self._move(min(left_s, TICK_S), writing=writing)
        if not (left_s or moved):
            raise TimeoutError(f"no answer after {time.monotonic() - self._began:.0f} s")
        if self._intake.overflow:
            self._leave()
        return moved

    def _quiet(self, since: float | None, *, moved: bool) -> float | None:
        """Since when the command has been gone and its output silent; None if it is not."""
        if moved or not self._exited(0.0):
            return None
        return since if since is not None else time.monotonic()

    def _too_much(self) -> ReachError:
        return ReachError(
            "answer",
            f"it wrote more than {self._intake.limit >> 20} MiB where an answer was expected",
            "find what the login shell or a wrapper prints on every command, and silence it",
        )


def _past(since: float | None, seconds: float) -> bool:
    return since is not None and time.monotonic() - since >= seconds
