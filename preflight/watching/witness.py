"""Tells whether a signal was meant for all of us or for this process alone.

Ctrl-C, `kill -- -GROUP`, Slurm's scancel and systemd signal every process by themselves. A wrapper
that passed such a signal on would deliver it twice, and torchrun takes a second SIGTERM while it
still ends its ranks. A process beside us that lets signals lie shows which it was.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from preflight.watching.proc import pending

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.watching.children import Children

_SENDERS_LOOP_S = 0.1
"""Who signals every process of a job one by one may come to us first."""


class Witness:
    """A `cat` in our process group, with every signal blocked, that ends when we do."""

    def __init__(self, children: Children, signals: Iterable[int]) -> None:
        self._children = children
        self._signals = frozenset(signals)
        self._pid = self._end = -1
        self._renew()

    def saw(self, number: int) -> bool:
        """Whether it got that signal too; False where there is no witness."""
        if self._pid < 0:
            return False
        time.sleep(_SENDERS_LOOP_S)
        saw = number in pending(self._pid)
        if saw:
            self._renew()
        return saw

    def dismiss(self) -> None:
        """Let it end."""
        if self._pid >= 0:
            os.close(self._end)
            self._children.end(self._pid)
            self._pid = -1

    def _renew(self) -> None:
        """A new one, on which nothing lies."""
        self.dismiss()
        theirs, self._end = os.pipe()
        try:
            self._pid = self._children.start(
                ["cat"], os.environ,
                [
                    (os.POSIX_SPAWN_DUP2, theirs, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                blocked=self._signals,
                default=self._signals,
            )  # fmt: skip
        except OSError:
            os.close(self._end)
        finally:
            os.close(theirs)
