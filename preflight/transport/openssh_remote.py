"""A command whose exit status ssh cannot blur: 255 is ssh's own word, and a signal has none."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from preflight.transport.pipes import PipeRemote

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence

SSH_FAILED: Final = 255
SIGNALLED: Final = -1
"""Ended by a signal of which we do not know the number."""

_TELL: Final = '"$@"; s=$?; echo "$0 $s" >&2; exit $s'


def marked(argv: Sequence[str], mark: str) -> list[str]:
    """Have the node itself say with which status a command ended: `MARK 137`, on stderr.

    ssh's client tells 255 of a command that a signal ended, of one that exits 255 and of a lost
    connection alike, and nothing at all while a grandchild holds the output open.
    """
    return ["sh", "-c", _TELL, mark, *argv]


class OpenSSHRemote(PipeRemote):
    """One command through a master: the ssh process is ours, the status the node's."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        timeout_s: float,
        limit: int,
        *,
        mark: str,
        connected: Callable[[], bool],
    ) -> None:
        super().__init__(process, timeout_s, limit)
        self._mark = re.compile(re.escape(mark.encode()) + rb" (\d{1,3})\n")
        self._connected = connected
        self._told: int | None = None

    def _took_stderr(self, data: bytes) -> None:
        super()._took_stderr(data)
        if self._told is None and (said := self._intake.cut_stderr(self._mark)):
            self._told = int(said[1])

    def _exited(self, wait_s: float) -> bool:
        return self._told is not None or super()._exited(wait_s)

    def _leave(self) -> int | None:
        status = super()._leave()
        if self._told is not None or status != SSH_FAILED:
            return status if self._told is None else self._told
        return SIGNALLED if self._connected() else None
