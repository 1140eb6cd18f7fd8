"""Progress of a run on pytest's own terminal: names the straggler, quiet when nobody watches."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from preflight.fleet.nodeset import fold
from preflight.report.text import wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

_NAMED = 8
"""So many stragglers are named; more are counted."""


class TerminalProgress:
    """Rewrites one line on a terminal; elsewhere prints a line when a phase begins to drag."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal
        self._live = terminal.isatty and terminal.verbosity >= 0
        self._lock = threading.Lock()
        self._began: dict[str, float] = {}
        self._said: dict[str, float] = {}
        self._width = 0

    def step(self, phase: str, done: int, total: int, waiting: Sequence[str]) -> None:
        """Show how far a phase is; off a terminal at its end and every ten seconds."""
        now = time.monotonic()
        with self._lock:
            began = self._began.setdefault(phase, now)
            text = f"{phase:<8} {done}/{total}  {now - began:.1f} s"
            if done == total:
                waiting = ()
            if waiting and len(waiting) <= _NAMED:
                text += f"  waiting for {fold(waiting)}"
            elif waiting:
                text += f"  waiting for {len(waiting)} nodes"
            if self._live:
                self._rewrite(text, last=done == total)
            elif self._terminal.verbosity >= 0 and self._due(phase, now, last=done == total):
                self._terminal.write_line(text)

    def line(self, text: str) -> None:
        """Print a line that stays."""
        with self._lock:
            if self._live and self._width:
                self._terminal.rewrite(" " * self._width)
                self._terminal.rewrite("")
                self._width = 0
            if self._terminal.verbosity >= -1:
                width = self._terminal._tw.fullwidth  # noqa: SLF001  pytest offers no other way
                for piece in wrapped(text, first="", indent=" " * 7, width=width):
                    self._terminal.write_line(piece)

    def _rewrite(self, text: str, *, last: bool) -> None:
        cut = text[: self._terminal._tw.fullwidth - 1]  # noqa: SLF001  pytest offers no other way
        self._terminal.rewrite(cut.ljust(self._width))
        self._width = len(cut)
        if last:
            self._terminal.write_line("")
            self._width = 0

    def _due(self, phase: str, now: float, *, last: bool) -> bool:
        """Every ten seconds while it lasts, and once at its end."""
        previous = self._said.get(phase, self._began[phase])
        if previous < 0 or not (last or now - previous >= 10):  # noqa: PLR2004  seconds
            return False
        self._said[phase] = -1.0 if last else now
        return True
