"""One JSON line per message, marked with the run's nonce: a login banner cannot pose as us."""

from __future__ import annotations

import json
import os
import select
import time
from _thread import allocate_lock

TYPE_CHECKING = False  # `typing` itself would cost every node milliseconds
if TYPE_CHECKING:
    from typing import Any

VERSION = 1
LINE_LIMIT = 4 << 20
"""Longest line we read from the controller, bytes."""


class Gone(Exception):  # noqa: N818 (an ending, not an error)
    """The controller closed its end: nobody is left to answer."""


class Channel:
    """Standard input and output as lines of JSON. Reading and writing may happen in two threads."""

    def __init__(self, fd_in: int = 0, fd_out: int = 1) -> None:
        self.nonce = ""
        self._in, self._out = fd_in, fd_out
        self._buffer = bytearray()
        self._writing = allocate_lock()

    def lines(self, within_s: float | None = None) -> dict[str, Any] | None:
        """Return the controller's next message; None when there will be no more.

        TimeoutError if none is whole within that time; it can still come later.
        """
        ends = None if within_s is None else time.monotonic() + within_s
        while b"\n" not in self._buffer:
            left_s = None if ends is None else max(0.0, ends - time.monotonic())
            if not select.select([self._in], [], [], left_s)[0]:
                raise TimeoutError
            chunk = os.read(self._in, 65536)
            if not chunk or len(self._buffer) > LINE_LIMIT:
                return None
            self._buffer += chunk
        line, _, rest = self._buffer.partition(b"\n")
        self._buffer = rest
        message = json.loads(line.decode())
        if not isinstance(message, dict):
            raise TypeError("a message must be a JSON object: preflight and its payload differ")
        return message

    def emit(self, document: dict[str, Any]) -> None:
        """Write one message as a whole, plain ASCII; Gone when nobody reads any more."""
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
        line = memoryview(f"@preflight {self.nonce} {text}\n".encode("ascii"))
        with self._writing:
            try:
                while line:
                    line = line[os.write(self._out, line) :]
            except OSError as error:
                raise Gone from error
