"""Work that a watch has done by a process of its own: so it stays small, and is never held up."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.watching.children import Children

_LONGEST = 64 << 10


class Errand:
    """A module of ours that runs until it ends or its time is over."""

    def __init__(self, children: Children, words: Sequence[str], most_s: float) -> None:
        """`words`: the module and its arguments. OSError where no process can be started."""
        self._children = children
        self._said, theirs = os.pipe()
        os.set_blocking(self._said, False)
        self._text = b""
        self.until_s = time.monotonic() + most_s
        try:
            self._pid = children.start(
                [sys.executable, "-P", "-m", *words],
                os.environ,
                [
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, theirs, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
            )
        except OSError:
            os.close(self._said)
            raise
        finally:
            os.close(theirs)

    def over(self) -> bool:
        """Whether it has ended; it is ended where its time is over."""
        self._children.reap()
        self._hear()
        if time.monotonic() >= self.until_s:
            self._children.end(self._pid)
        return self._children.status(self._pid) is not None

    def conclude(self) -> tuple[int, str]:
        """End it where it still runs; its exit code (negative: by that signal) and what it said."""
        self._children.end(self._pid)
        self._hear()
        os.close(self._said)
        status = self._children.status(self._pid)
        code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
        return code, self._text.decode("utf-8", "replace")

    def _hear(self) -> None:
        """Take what it has said so far: a full pipe would hold it up."""
        with suppress(BlockingIOError):
            while text := os.read(self._said, _LONGEST):
                self._text = (self._text + text)[:_LONGEST]
