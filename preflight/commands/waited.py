"""Whom a command still waits for, on one line of a terminal: the last node is often the culprit."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from preflight.fleet.nodeset import fold
from preflight.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOM = 76
_ANEW = "\r\x1b[K"


class Waited:
    """Writes over its own line on a terminal; into a file, a line each time it tells."""

    def __init__(self, stream: TextIO, nodes: int) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._open = False
        if nodes > 1:
            self._write(f"asking {nodes} nodes")

    def tell(self, done: int, total: int, waiting: Sequence[str]) -> None:
        """Say how many have answered, and who has not."""
        if total > 1 and waiting:
            self._write(f"{done} of {total} nodes answered, waiting for {fold(waiting)}")

    def end(self) -> None:
        """Clear the line."""
        if self._open:
            self._stream.write(_ANEW)
            self._stream.flush()
            self._open = False

    def _write(self, words: str) -> None:
        said = printable(f"preflight: {words}")
        if self._live:
            said = said if len(said) <= _ROOM else said[: _ROOM - 3] + "..."
            self._stream.write(_ANEW + said)
            self._open = True
        else:
            self._stream.write(said + "\n")
        self._stream.flush()
