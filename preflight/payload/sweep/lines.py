"""Whole JSON lines between the processes of one node; half a line of a killed writer is dropped."""

from __future__ import annotations

import json
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .stalls import Stalls

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
