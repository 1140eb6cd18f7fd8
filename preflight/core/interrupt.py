"""Ctrl-C, SIGTERM or SIGHUP ends a run with what is known; a second Ctrl-C ends it at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_SAME_S = 0.5
"""One Ctrl-C may arrive twice: from the terminal, and from a wrapper such as timeout(1)."""

_LEFT_AT_ONCE = 130
_NO_REPORT = b"\npreflight: left at once, without a report; the nodes end what runs there\n"
_LATE = b"\npreflight: interrupted: finishing the report; Ctrl-C again leaves without it\n"


class Interrupts:
    """Handles these signals until `let_go`, unless other code or nohup already does."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._is_ending = False
        self.came_late = False
        """A signal came while the results were written: it does not stop that."""
        self._before: dict[signal.Signals, Callable[..., object] | int | None] = {}

    def hold(self) -> None:
        """Take the signals that have Python's own handling; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            now = signal.getsignal(number)
            if now in (signal.SIG_DFL, signal.default_int_handler):
                self._before[number] = now
                signal.signal(number, self._on_signal)

    def only_note(self) -> None:
        """From now on the first signal is noted: what was measured is being written."""
        self._is_ending = True

    def let_go(self) -> None:
        """Give the signals back."""
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        now = time.monotonic()
        if self._first is None:
            self._first = now
            if self._is_ending:
                self.came_late = True
                os.write(2, _LATE)
                return
            raise KeyboardInterrupt
        if number == signal.SIGINT and now - self._first > _SAME_S:
            # The agents' input ends with this process: they exit by themselves.
            os.write(2, _NO_REPORT)
            os._exit(_LEFT_AT_ONCE)
