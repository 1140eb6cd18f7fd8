"""Every process that a watch starts, and how it ended: reaped in one place, as process 1 must."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_CHANGED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these from its start; what it starts must not."""

_LOOKS, _BETWEEN_S = 200, 0.005
"""A second for a killed process to be gone."""


class Children:
    """Starts processes, and knows how each ended."""

    def __init__(self, mask: Iterable[int]) -> None:
        """`mask`: the signals that were blocked before we blocked ours."""
        self._mask = frozenset(mask)
        self._ended: dict[int, int] = {}
        self._ours: set[int] = set()

    def start(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        files: Sequence[tuple[Any, ...]] = (),
        *,
        blocked: Iterable[int] = (),
        default: Iterable[int] = (),
    ) -> int:
        """Start one; OSError where it cannot be. `files`: as `os.posix_spawn` takes them.

        Descriptors that we inherited are its own too; those that we opened are not.
        """
        pid = os.posix_spawnp(
            words[0], list(words), environ,
            file_actions=list(files),
            setsigmask=self._mask | frozenset(blocked),
            setsigdef=[*_CHANGED_BY_PYTHON, *default],
        )  # fmt: skip
        self._ours.add(pid)
        return pid

    def reap(self) -> None:
        """Take note of all that have ended; orphans that were given to us are let go."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self._ours:
                    self._ended[pid] = status

    def status(self, pid: int) -> int | None:
        """How it ended, as waitpid tells it; None while it runs."""
        return self._ended.get(pid)

    def end(self, pid: int) -> None:
        """End one of ours; one that the kernel does not let go (D state) is left behind."""
        self.reap()
        if pid in self._ended:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        for _ in range(_LOOKS):
            self.reap()
            if pid in self._ended:
                return
            time.sleep(_BETWEEN_S)
