"""One disposable process in which a rank runs a piece of the payload; only it touches CUDA."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from preflight.torchrun.notes import CHUNK, Ended, Said, Unable
from preflight.transport.bundle import boot, bundle
from preflight.transport.streams import deadlined

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.torchrun.notes import Reply, Start
    from preflight.transport.bundle import Beside

ASK_S = 0.5
"""Between SIGTERM and SIGKILL: timeout(1) reaps the payload when asked."""

_TICK_S = 0.02


class Child:
    """Its input comes from a queue, its output goes to `say`, each in a thread of its own."""

    def __init__(self, start: Start, say: Callable[[Reply], None], beside: Beside) -> None:
        self._number = start.child
        self._limit = start.limit
        self._say = say
        self._input: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        packed = bundle(start.entry, beside=beside if start.entry == "probe" else ())
        self._process = subprocess.Popen(
            deadlined(boot((sys.executable,), start.entry, len(packed)), start.timeout_s),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._input.put(packed)

    def run(self) -> None:
        """Begin to pass on what it reads and writes."""
        for work in (self._write, self._read_all):
            threading.Thread(target=work, daemon=True).start()

    def feed(self, data: bytes, *, last: bool) -> None:
        """Give it more input."""
        if data:
            self._input.put(data)
        if last:
            self._input.put(None)

    def end(self) -> None:
        """Ask its process group to end, then make it. Never raises."""
        self._signal(signal.SIGTERM)
        ends = time.monotonic() + ASK_S
        while self._process.poll() is None and time.monotonic() < ends:
            time.sleep(_TICK_S)
        self._signal(signal.SIGKILL)
        self._input.put(None)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _write(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            while (data := self._input.get()) is not None:
                left = memoryview(data)
                while left:
                    left = left[os.write(self._process.stdin.fileno(), left) :]
        with suppress(OSError):
            self._process.stdin.close()

    def _read_all(self) -> None:
        """Pass its output on, standard error beside; its end comes last."""
        process = self._process
        assert process.stdout is not None
        assert process.stderr is not None
        errors = threading.Thread(target=self._read_errors, args=(process.stderr.fileno(),))
        errors.daemon = True
        errors.start()
        left = self._limit
        with suppress(OSError):
            while left > 0 and (data := os.read(process.stdout.fileno(), min(CHUNK, left + 1))):
                left -= len(data)
                self._say(Said(self._number, out=data))
        if left < 0:
            self.end()
        errors.join(ASK_S)
        status: int | None = None
        with suppress(subprocess.TimeoutExpired):
            status = process.wait(ASK_S)
        self._say(Ended(self._number, status))

    def _read_errors(self, descriptor: int) -> None:
        left = self._limit
        with suppress(OSError):
            while left > 0 and (data := os.read(descriptor, CHUNK)):
                left -= len(data)
                self._say(Said(self._number, err=data))


def start_child(start: Start, say: Callable[[Reply], None], beside: Beside) -> Child | None:
    """Start it; None, and the reason said, where this node cannot."""
    try:
        child = Child(start, say, beside)
    except OSError as error:
        sentence = f"cannot start a process: {error.strerror or error}"
        say(Unable(start.child, sentence[:500], "install coreutils' timeout; look at its limits"))
        return None
    child.run()
    return child
