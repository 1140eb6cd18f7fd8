"""What a command has written so far, within bounds: a node may write without end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.transport.protocol import Answer

if TYPE_CHECKING:
    import re

STDERR_KEPT = 64 << 10
"""Bytes of standard error that are kept: the last ones, where the reason is."""


class Intake:
    """The output received so far, within bounds."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.ended = False
        """No more output will come."""
        self._out = bytearray()
        self._err = bytearray()
        self._out_seen = self._err_seen = self._searched = 0

    @property
    def overflow(self) -> bool:
        """Whether either output exceeded the limit."""
        return max(self._out_seen, self._err_seen) > self.limit

    def add_stdout(self, data: bytes) -> None:
        """Keep what fits under the limit."""
        self._out += data[: max(0, self.limit - self._out_seen)]
        self._out_seen += len(data)

    def add_stderr(self, data: bytes) -> None:
        """Keep the end of it."""
        self._err = (self._err + data)[-STDERR_KEPT:]
        self._err_seen += len(data)

    def cut_stderr(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """Find something in what is kept of standard error, and take it out of there."""
        match = pattern.search(bytes(self._err))
        if match:
            del self._err[match.start() : match.end()]
        return match

    def take_line(self) -> bytes | None:
        """The next whole line without its newline, if there is one."""
        at = self._out.find(b"\n", self._searched)
        if at < 0:
            self._searched = len(self._out)
            return None
        line = bytes(self._out[:at])
        del self._out[: at + 1]
        self._searched = 0
        return line

    def answer(self, status: int | None, seconds: float) -> Answer:
        """Everything that was not taken as lines."""
        return Answer(status, bytes(self._out), bytes(self._err), self.overflow, seconds)
