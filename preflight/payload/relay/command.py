"""One command of the controller: its process, its three pipes, and how much may be on its way."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, List, Optional

CHUNK = 64 << 10
OUT_ROOM = 1 << 20
IN_ROOM = 256 << 10
"""Bytes that may be on their way to the controller unread, and to the command."""

ASK_S = 0.5
"""What a command gets between SIGTERM and SIGKILL."""


class Command:
    """A process in a session of its own, which ends as a whole."""

    def __init__(self, argv: List[str]) -> None:
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.stdin = _pipe(self._process.stdin)
        self.stdout = _pipe(self._process.stdout)
        self.stderr = _pipe(self._process.stderr)
        self.open = {self.stdout: self._process.stdout, self.stderr: self._process.stderr}
        """Outputs that have not ended, by descriptor."""
        self.waiting = bytearray()
        """Input that the command has not taken yet."""
        self.input_ends = False
        self.room = OUT_ROOM
        self.exited = False
        self.kill_at: Optional[float] = None
        """When SIGKILL is due, once it was asked to end."""

    def write(self) -> int:
        """Hand on what the command takes now; -1 when it reads no more."""
        if self._process.stdin is None or self._process.stdin.closed:
            return -1
        written = 0
        try:
            while self.waiting and (part := os.write(self.stdin, self.waiting[:CHUNK])):
                del self.waiting[:part]
                written += part
        except BlockingIOError:
            pass
        except OSError:
            self.close_input()
            return -1
        if self.input_ends and not self.waiting:
            self.close_input()
        return written

    def close_input(self) -> None:
        """Let the command see the end of its input."""
        self.waiting.clear()
        if self._process.stdin is not None:
            self._process.stdin.close()

    @property
    def wants_input(self) -> bool:
        """Whether there is something to write to it."""
        stdin = self._process.stdin
        return stdin is not None and not stdin.closed and bool(self.waiting)

    def read(self, descriptor: int) -> bytes:
        """Take what one output has; empty at its end, which closes it."""
        data = os.read(descriptor, max(1, min(CHUNK, self.room)))
        self.room -= len(data)
        if not data:
            _close(self.open.pop(descriptor))
        return data

    def status(self) -> Optional[int]:
        """How it ended, negative for a signal; None while it runs.

        Looks without reaping: until `forget` its process group cannot be anybody else's.
        """
        try:
            seen = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return -1
        if seen is None:
            return None
        return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status

    def ask(self) -> None:
        """Ask it to end. Killed, timeout(1) would leave its command to nobody."""
        if self.kill_at is None:
            self._signal(signal.SIGTERM)
            self.kill_at = time.monotonic() + ASK_S

    def forget(self) -> None:
        """End what is left of its process group, and let go of everything."""
        self._signal(signal.SIGKILL)
        self.close_input()
        while self.open:
            _close(self.open.popitem()[1])
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        self._process.returncode = 0  # keeps subprocess from waiting for a pid that is not ours now

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _pipe(pipe: Optional[IO[bytes]]) -> int:
    if pipe is None:
        raise OSError("no pipe")
    os.set_blocking(pipe.fileno(), False)
    return pipe.fileno()


def _close(pipe: Optional[IO[bytes]]) -> None:
    if pipe is not None:
        pipe.close()
