"""One `ssh` per node that logs in once and lends its connection to every command."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from contextlib import suppress
from io import FileIO
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LOG_KEPT: Final = 256 << 10
"""Bytes of what ssh says on its way in: the last ones; a node's banner may be endless."""

TICK_S: Final = 0.05
REAP_S: Final = 1.0


class Master:
    """An ssh that has logged in, or is about to."""

    def __init__(self, argv: Sequence[str], path: Path) -> None:
        self.socket = path
        self.log = b""
        """What it said until it had logged in (`ssh -v`)."""
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is ours to handle; its ProxyCommand ends with it
            env=os.environ | {"SSH_ASKPASS_REQUIRE": "never"},
        )

    @property
    def alive(self) -> bool:
        """Whether the process runs: it ends with the connection."""
        return self._process.poll() is None

    @property
    def serves(self) -> bool:
        """Whether it still takes commands: one that is dying has closed its socket first."""
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(TICK_S)
            try:
                door.connect(str(self.socket))
            except TimeoutError:
                return self.alive  # too many wait at its door
            except OSError:
                return False
        return self.alive

    @property
    def stderr(self) -> FileIO:
        """What it goes on saying, unbuffered."""
        assert isinstance(self._process.stderr, FileIO)
        return self._process.stderr

    def logged_in(self, ends: float) -> bool:
        """Wait until commands can use it; False when it ended, or time is up."""
        os.set_blocking(self.stderr.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(self.stderr, selectors.EVENT_READ)
            while not self.socket.exists():
                left_s = ends - time.monotonic()
                if left_s <= 0:
                    return False
                if selector.select(min(left_s, TICK_S)) and not self._heard():
                    self._reap(max(0.0, ends - time.monotonic()))
                    return False
        return True

    def forget_log(self) -> None:
        """Hear no more of it: what it says from now on is for nobody, and may be endless.

        ssh ignores SIGPIPE, so that it may speak to a closed pipe.
        """
        with suppress(OSError):
            self.stderr.close()

    def ask_to_end(self) -> None:
        """Hang up; `end` then reaps it. Never raises."""
        self._signal(signal.SIGTERM)

    def end(self) -> None:
        """Hang up, wait until it is gone, remove its socket. Never raises."""
        self.ask_to_end()
        if not self._reap(REAP_S):
            self._signal(signal.SIGKILL)
            self._reap(REAP_S)
        self.forget_log()
        with suppress(OSError):
            self.socket.unlink(missing_ok=True)

    def _heard(self) -> bool:
        """Take what it said; False at the end of it."""
        data = self.stderr.read(1 << 16)
        self.log = (self.log + (data or b""))[-LOG_KEPT:]
        return data != b""

    def _reap(self, wait_s: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        return self._process.returncode is not None

    def _signal(self, number: signal.Signals) -> None:
        """Signal its group; unreaped, its pid cannot be anybody else's."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
