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

from . import procfs, stat
from .text import words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

GRACE_S = 0.5
"""How long after SIGKILL, or after its answer, a child may take to be gone."""

_STANDARD = (0, 1, 2)


_TICK_S = 0.1
"""How often a wait notes that it ran."""

_LATE_S = 0.15
"""A tick that comes this much later is a busy machine's; what is beyond is time that nobody had."""

_PAUSE_S = 1.0
"""A tick that comes this much later is a pause: of the machine, the container, or by a signal."""

_FREEZERS = ("__refrigerator", "do_freezer_trap")
"""Where a process of a frozen container waits (wchan): freezers of cgroup v1 and v2."""


class Clock:
    """CLOCK_MONOTONIC without the time in which this process, or who it waits for, could not run.

    SIGSTOP, a frozen container, a machine that is migrated: no deadline may pass meanwhile.
    """

    def __init__(self) -> None:
        self.paused_s = 0.0
        """What pauses took since `bound`."""
        self._lost_s = 0.0
        self._at = 0.0
        self._ends: float | None = None

    def bound(self, ends: float) -> None:
        """Leave pauses out from now on, but end all waiting at `ends` (time.monotonic).

        Until then this is CLOCK_MONOTONIC, for an entry that takes pauses as they come.
        """
        self._ends, self._at = ends, time.monotonic()

    def now(self) -> float:
        """Seconds; to be asked several times a second, or what lies between counts as a pause."""
        at = time.monotonic()
        if self._ends is not None:
            late_s = at - self._at - _TICK_S
            self._lost_s += max(0.0, late_s - _LATE_S)
            self.paused_s += late_s if late_s > _PAUSE_S else 0.0
            self._at = at
        return at - self._lost_s

    def left_s(self, until: float) -> float:
        """Seconds until then, or until the end of all waiting; 0 where that has come."""
        left_s = until - self.now()
        if self._ends is not None:
            left_s = min(left_s, self._ends - self._at)
        return max(0.0, left_s)

    def skip(self, seconds: float) -> None:
        """Leave out the last so many: who we waited for was stopped."""
        if self._ends is not None:
            self.paused_s += seconds
            self._lost_s += seconds


clock = Clock()
"""The one of this process, by which all `until` in here count."""


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
            tick_s = min(clock.left_s(until), _TICK_S)
            if not poll.poll(tick_s * 1000):
                if self._stopped():
                    clock.skip(tick_s)
                if not clock.left_s(until):
                    return False
                continue
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
        until = clock.now() + GRACE_S
        while not self._reaped():
            if clock.now() > until:
                children.end(self.pid)
                return self._reaped()
            time.sleep(0.002)
        return True

    def _stopped(self) -> bool:
        """Whether somebody stopped or froze it alone."""
        its = stat.look(self.pid)
        return its is not None and (its.state in "Tt" or procfs.wchan(self.pid) in _FREEZERS)

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
        clock.now()
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
