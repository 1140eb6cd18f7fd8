"""A call that may never return runs in a child we can do without: the node still answers in time.

SIGKILL does not reach a process in D state, and a process that inherited the SSH channel keeps it
open. So the child gets no descriptor of ours but its own result pipe, and is never waited on.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time

import children

from .text import words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

GRACE_S = 0.5
"""How long after SIGKILL, or after its answer, a child may take to be gone."""

_STANDARD = (0, 1, 2)


class BrokenError(Exception):
    """The child ended without an answer; the text says how."""


class Child:
    """One forked helper and what it has said so far."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self.said = bytearray()
        self.status: int | None = None
        """Wait status, once it is gone."""
        self._pipe = pipe

    def listen(self, until: float, limit: int = 16 << 20) -> bool:
        """Read on till it has said everything (True) or that time has come (False)."""
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        while len(self.said) <= limit:
            left_s = max(0.0, until - time.monotonic())
            if not poll.poll(left_s * 1000):
                return False
            chunk = os.read(self._pipe, 65536)
            if not chunk:
                return True
            self.said += chunk
        return True

    def value(self) -> Any:
        """What `spawn`ed work returned; BrokenError with its words if it failed."""
        try:
            answer = json.loads(self.said.decode())
        except ValueError:
            raise BrokenError("its process ended without an answer") from None
        if "failed" in answer:
            raise BrokenError(answer["failed"])
        return answer["value"]

    def dismiss(self, *, kill: bool) -> bool:
        """Stop caring, and say whether it is gone: a survivor is not waited on any longer."""
        if kill:
            children.end(self.pid)
        os.close(self._pipe)
        until = time.monotonic() + GRACE_S
        while not self._reaped():
            if time.monotonic() > until:
                children.end(self.pid)
                return self._reaped()
            time.sleep(0.002)
        return True

    def _reaped(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == 0:
                return False
            self.status = status
        return True


def spawn(work: Callable[..., Any], *given: object) -> Child:
    """Start `work(*given)` in a child of its own; what it returns must be plain JSON."""

    def run(pipe: int) -> None:
        try:
            answer = {"value": work(*given)}
        except Exception as error:  # noqa: BLE001 (one section's trouble stays its own)
            answer = {"failed": words(error)}
        with open(pipe, "wb", buffering=1 << 16) as file:
            file.write(json.dumps(answer).encode("ascii"))

    return _fork(run)


def answer_of(name: str, asked: Child, until: float, complain: Callable[[str], None]) -> Any:
    """Return what a section's child answers till then; None, and why to `complain`, if nothing."""
    answered = asked.listen(until)
    if not asked.dismiss(kill=not answered):
        complain(f"{name}: its reader {asked.pid} cannot be killed")
    try:
        if answered:
            return asked.value()
        complain(f"{name}: no answer in time")
    except BrokenError as error:
        complain(f"{name}: {error}")
    return None


def spawn_program(argv: list[str], environ: Mapping[str, str], *, errors: bool = False) -> Child:
    """Start a program whose standard output is the pipe; its standard error too with `errors`."""

    def run(pipe: int) -> None:
        os.dup2(pipe, 1)
        if errors:
            os.dup2(pipe, 2)
        os.execve(argv[0], argv, environ)  # noqa: S606 (no shell is wanted)

    return _fork(run)


def _fork(run: Callable[[int], None]) -> Child:
    mine, its = os.pipe()
    pid = os.fork()
    if pid:
        os.close(its)
        return Child(pid, mine)
    try:
        _shed(its)
        run(its)
        os._exit(0)
    finally:
        os._exit(1)


def _shed(keep: int) -> None:
    """Drop what a child must not hold: our descriptors, our alarm, our answers to signals."""
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in _STANDARD:
        os.dup2(null, standard)
    spared = {str(keep), *map(str, _STANDARD)}
    spared |= {os.path.basename(path) for path in sys.path if path.startswith("/proc/self/fd/")}
    for name in os.listdir("/proc/self/fd"):
        if name not in spared:
            with contextlib.suppress(OSError):
                os.close(int(name))
