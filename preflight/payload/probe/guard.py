"""A call that may never return runs in a child we can do without: the node still answers in time.

SIGKILL does not reach a process in D state, and a process that inherited the SSH channel keeps it
open. So the child gets no descriptor of ours but its own result pipe, and is never waited on.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import select
import struct
import sys
import time

import children

from . import procfs
from .text import words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

GRACE_S = 0.5
"""How long after SIGKILL, or after its answer, a child may take to be gone."""

_STANDARD = (0, 1, 2)


_TICK_S = 0.1
"""How often a wait notes that it ran."""

_LATE_S = 0.15
"""A tick that comes this much later is a busy machine's; what is beyond is time that nobody had."""

_FREEZERS = ("__refrigerator", "do_freezer_trap")
"""Where a process of a frozen container waits (wchan): freezers of cgroup v1 and v2."""


class Clock:
    """CLOCK_MONOTONIC without the time in which this process, or who it waits for, could not run.

    SIGSTOP, a frozen container, a machine that is migrated: no deadline may pass meanwhile.
    """

    def __init__(self) -> None:
        self.stood_s = 0.0
        """For how long this process did not run since `bound`, and not for want of a CPU."""
        self._lost_s = self._at = self._mine_s = 0.0
        self._ends: float | None = None

    def bound(self, ends: float) -> None:
        """Leave pauses out from now on, but end all waiting at `ends` (time.monotonic).

        Until then this is CLOCK_MONOTONIC, for an entry that takes pauses as they come.
        """
        self._ends, self._at, self._mine_s = ends, time.monotonic(), sum(_scheduled("self"))

    def now(self) -> float:
        """Seconds; to be asked several times a second, or what lies between counts as a pause."""
        at = time.monotonic()
        if self._ends is not None:
            late_s, mine_s = at - self._at - _TICK_S, sum(_scheduled("self"))
            stood_s = late_s - (mine_s - self._mine_s)
            self._lost_s += max(0.0, late_s - _LATE_S)
            self.stood_s += stood_s if stood_s > _LATE_S else 0.0
            self._at, self._mine_s = at, mine_s
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
            self._lost_s += seconds


clock = Clock()
"""The one of this process, by which all `until` in here count."""


class Calls:
    """The calls of a child, one after the other, and how long it waited in each (`Waiting`).

    The child writes into memory that it shares with its parent when the call in progress began; by
    that moment the parent tells it from others. A pause is so left out of the call that it fell in.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 8)
        self._seen = 0.0
        self._waited_s: dict[float, float] = {}

    def begin(self) -> float:
        """In the child: the moment, as a call begins."""
        began = time.monotonic()
        struct.pack_into("d", self._shared, 0, began)
        return began

    def note(self, since: float, now: float, waited_s: float) -> None:
        """In the parent: of a tick that two calls share, each has what lies on its side."""
        before, (self._seen,) = self._seen, struct.unpack_from("d", self._shared, 0)
        shares = {before: waited_s}
        if self._seen != before:
            shares = {before: self._seen - since, self._seen: now - self._seen}
        for began, share_s in shares.items():
            more_s = max(0.0, min(waited_s, share_s))
            self._waited_s[began] = self._waited_s.get(began, 0.0) + more_s

    def waited_s(self, began: float, took_s: float) -> float:
        """Return how long the child waited in a call of that length by its own clock.

        One that no tick has met was over within one.
        """
        return min(took_s, self._waited_s.get(began, _TICK_S))


class Waiting:
    """How long a child waits for what it asks (the driver), as its parent sees it at every tick.

    That is time in which it sleeps in the kernel, interruptibly or not, and CPU time that it uses.
    It is not: time in which it could run and had no CPU (state R, or the kernel's run delay: other
    processes, a quota), was stopped or frozen; nor in which this parent stood still, unless it only
    had no CPU either. So a crowd of users makes no driver slow, and hides no hung one.
    """

    def __init__(self, pid: int, calls: Calls | None) -> None:
        self.seconds = 0.0
        self.began = time.monotonic()
        self.calls = calls or Calls()
        self._pid = pid
        self._seen = self._look()

    def note(self, state: str) -> None:
        """Count what passed since the last time; `state` is how it is now, "" where it ended."""
        before, self._seen = self._seen, self._look()
        passed_s, stood_s, ran_s, starved_s = (b - a for a, b in zip(before, self._seen))  # noqa: B905 (Python 3.8)
        waited_s = ran_s if state == "R" else max(0.0, passed_s - stood_s - starved_s)
        if state in _STOPPED:
            waited_s = 0.0
        self.seconds += waited_s
        self.calls.note(before[0], self._seen[0], waited_s)

    def _look(self) -> tuple[float, ...]:
        return (time.monotonic(), clock.stood_s, *_scheduled(self._pid))


_STOPPED = ("T", "t")


def _scheduled(pid: int | str) -> tuple[float, float]:
    """Seconds that a process had a CPU, and that it waited for one; 0 where nobody counts them."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            ran_ns, starved_ns = file.read().split()[:2]
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(ran_ns) / 1e9, int(starved_ns) / 1e9


class BrokenError(Exception):
    """The child ended without an answer; the text says how."""


MOST_BYTES = 32 << 20
"""What one child may say: twice the largest ring buffer of kernels as they are built."""

_talking: dict[int, Child] = {}
"""Children that have not said everything, by their pipes."""


class Child:
    """One forked helper and what it has said so far.

    Whichever child is listened to, what all of them say is read: so none waits till it is its turn,
    and one that has done its work in time has told it in time, however much that is.
    """

    def __init__(self, pid: int, pipe: int, most: int, calls: Calls | None = None) -> None:
        self.pid = pid
        self.said = bytearray()
        self.ended = math.inf
        """When it had said everything, or over `most` bytes, of which no more is read."""
        self.status: int | None = None
        """Wait status, once it is gone."""
        self.waiting = Waiting(pid, calls)
        self._pipe, self.most = pipe, most
        _talking[pipe] = self

    def listen(self, until: float = math.inf, *, most_s: float = math.inf) -> bool:
        """Read on till it has said everything (True) or that time has come (False).

        `most_s`: or till it has waited that long itself.
        """
        while self._pipe in _talking:
            tick_s = min(clock.left_s(until), _TICK_S)
            if not self._hear(tick_s):
                state = self._state()
                if state in _STOPPED:
                    clock.skip(tick_s)
                left_s = clock.left_s(until)
                self.waiting.note(state)
                if not left_s or self.waiting.seconds >= most_s:
                    return False
        clock.now()
        self.waiting.note("")
        return True

    def _hear(self, seconds: float) -> bool:
        """Read what the children say till this one did (True), or that time is over (False)."""
        ends, before = time.monotonic() + seconds, len(self.said)
        while self._pipe in _talking:
            poll, left_s = select.poll(), max(0.0, ends - time.monotonic())
            for pipe in _talking:
                poll.register(pipe, select.POLLIN)
            heard = poll.poll(left_s * 1000)
            for pipe, _ in heard:
                child, chunk = _talking[pipe], os.read(pipe, 65536)
                child.said += chunk
                if not chunk or len(child.said) > child.most:
                    del _talking[pipe]
                    child.ended = time.monotonic()
            if len(self.said) > before:
                return True
            if not (heard and left_s):
                return False
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
        _talking.pop(self._pipe, None)
        os.close(self._pipe)
        until = clock.now() + GRACE_S
        while not self._reaped():
            if clock.now() > until:
                children.end(self.pid)
                return self._reaped()
            time.sleep(0.002)
        return True

    def _state(self) -> str:
        """Its state in /proc/PID/stat; that of a stopped one where somebody froze it."""
        its = procfs.look(self.pid)
        frozen = its is not None and procfs.wchan(self.pid) in _FREEZERS
        return "T" if frozen else its.state if its is not None else ""

    def _reaped(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == 0:
                return False
            self.status = status
        return True


def spawn(
    work: Callable[..., Any], *given: object, calls: Calls | None = None, most: int = MOST_BYTES
) -> Child:
    """Start `work(*given)` in a child of its own; what it returns must be plain JSON.

    `calls`: what the work tells when each of its calls begins. `most`: bytes that are read of it.
    """

    def run(pipe: int) -> None:
        try:
            answer = {"value": work(*given)}
        except Exception as error:  # noqa: BLE001 (one section's trouble stays its own)
            answer = {"failed": words(error)}
        with open(pipe, "wb", buffering=1 << 16) as file:
            file.write(json.dumps(answer).encode("ascii"))

    return _fork(run, most, calls)


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


def spawn_program(
    argv: list[str], environ: Mapping[str, str], *, errors: bool = False, most: int = MOST_BYTES
) -> Child:
    """Start a program whose standard output is the pipe; its standard error too with `errors`."""

    def run(pipe: int) -> None:
        os.dup2(pipe, 1)
        if errors:
            os.dup2(pipe, 2)
        os.execve(argv[0], argv, environ)  # noqa: S606 (no shell is wanted)

    return _fork(run, most)


def program(name: str, folders: Iterable[str]) -> str | None:
    """Return the first of these folders' programs of that name that can be run."""
    paths = (f"{folder}/{name}" for folder in folders if folder)
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)


def _fork(run: Callable[[int], None], most: int, calls: Calls | None = None) -> Child:
    mine, its = os.pipe()
    pid = os.fork()
    if pid:
        clock.now()
        os.close(its)
        return Child(pid, mine, most, calls)
    try:
        _talking.clear()
        _shed(its)
        run(its)
        os._exit(0)
    finally:
        os._exit(1)


def _shed(keep: int) -> None:
    """Drop what a child must not hold: our descriptors, our alarm, our answers to signals."""
    children.default_signals()
    children.let_go_of_the_wire()
    spared = {str(keep), *map(str, _STANDARD)}
    spared |= {os.path.basename(path) for path in sys.path if path.startswith("/proc/self/fd/")}
    for name in os.listdir("/proc/self/fd"):
        if name not in spared:
            with contextlib.suppress(OSError):
                os.close(int(name))
