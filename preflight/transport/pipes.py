"""A process of ours and its three pipes: what carries a command here, and the `ssh` of a node."""

from __future__ import annotations

import atexit
import os
import selectors
import signal
import subprocess
import threading
import time
import weakref
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from preflight.transport.streams import StreamRemote

if TYPE_CHECKING:
    from collections.abc import Sequence

CHUNK = 1 << 16
ASK_S = 0.5
"""What a command that we end gets between SIGTERM and SIGKILL."""

REAP_S = 1.0
"""How long a killed process may take to vanish; one in D state stays, and is a finding."""


_STARTED: weakref.WeakSet[PipeRemote] = weakref.WeakSet()


@atexit.register
def _end_what_is_left() -> None:
    """End commands whose threads an interrupted run leaves behind.

    In a session of their own they hear no Ctrl-C; until their deadline they would work for nobody.
    """
    for remote in list(_STARTED):
        remote.end()


def spawn(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start it in a process group of its own, which ends as a whole; OSError if it cannot be."""
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )


class PipeRemote(StreamRemote):
    """One process and its three pipes."""

    def __init__(self, process: subprocess.Popen[bytes], timeout_s: float, limit: int) -> None:
        super().__init__(timeout_s, limit)
        self._process = process
        self._stdin, self._stdout, self._stderr = _pipes(process)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ, self._intake.add_stdout)
        self._selector.register(self._stderr, selectors.EVENT_READ, self._took_stderr)
        self._using = threading.Lock()
        """Any thread may end the command while another one reads or writes."""
        self._left = False
        _STARTED.add(self)
        self._status: int | None = None

    def _took_stderr(self, data: bytes) -> None:
        self._intake.add_stderr(data)

    def finish_input(self) -> None:
        """Close our end of its standard input."""
        with self._using, suppress(OSError):
            self._stdin.close()

    def _write(self, data: memoryview) -> int:
        with self._using:
            if self._stdin.closed:
                raise BrokenPipeError
            try:
                return os.write(self._stdin.fileno(), data)
            except BlockingIOError:
                return 0

    def _move(self, wait_s: float, *, writing: bool) -> bool:
        with self._using:
            if self._left:
                return False
            if writing:
                self._selector.register(self._stdin, selectors.EVENT_WRITE)
            try:
                ready = [key for key, _ in self._selector.select(wait_s) if key.data]
            finally:
                if writing:
                    self._selector.unregister(self._stdin)
            moved = [self._read(key) for key in ready]
            return any(moved)

    def _read(self, key: selectors.SelectorKey) -> bool:
        data = os.read(key.fd, CHUNK)
        if data:
            key.data(data)
        else:
            self._selector.unregister(key.fileobj)
            self._intake.ended = not self._selector.get_map()
        return bool(data)

    def _exited(self, wait_s: float) -> bool:
        """Look without reaping: until then its process group cannot be anybody else's."""
        ends = time.monotonic() + wait_s
        nap_s = 0.0005
        while not self._gone():
            if time.monotonic() >= ends:
                return False
            nap_s = min(nap_s * 2, 0.02, max(0.0, ends - time.monotonic()))
            time.sleep(nap_s)
        return True

    def _gone(self) -> bool:
        if self._left or self._process.returncode is not None:
            return True
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self._process.pid, how) is not None
        except ChildProcessError:  # somebody ignores SIGCHLD: the kernel reaps for them
            return True

    def _leave(self) -> int | None:
        with self._using:
            if not self._left:
                told = self._gone()
                self.end()
                self._left = True
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(REAP_S)
                self._selector.close()
                for pipe in (self._stdin, self._stdout, self._stderr):
                    with suppress(OSError):
                        pipe.close()
                self._status = self._process.returncode if told else None
                self._intake.ended = True
            return self._status

    def end(self) -> None:
        """Ask the process group to end, then make it; reaps nothing."""
        if not self._gone():
            # Asked, timeout(1) reaps the command before it goes. Killed, it would leave a
            # zombie to an init that may not reap: in a container often none does.
            self._signal(signal.SIGTERM)
            self._exited(ASK_S)
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    pipes = [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe]
    for pipe in pipes:
        os.set_blocking(pipe.fileno(), False)
    stdin, stdout, stderr = pipes
    return stdin, stdout, stderr
