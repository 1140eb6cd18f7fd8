"""Runs a call that may never return in a disposable child, so that the node answers in time.

SIGKILL does not reach a process in D state, and a process that inherited the SSH channel keeps it
open. So the child inherits only its own result pipe, and its parent never blocks on its end.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import select
import struct
import time
from typing import Any, Callable, Iterable, Mapping, Sequence

import children

from . import procfs
from .node_files import words

GRACE_S = 0.5
"""How long a child may take to end after SIGKILL, or after its answer."""

_TICK_S = 0.1
"""Interval at which a wait updates the clock."""

_TICK_SLACK_S = 0.15
"""A tick may be this late on a busy machine; what is beyond counts as a pause."""

_FREEZERS = ("__refrigerator", "do_freezer_trap", "get_signal")
"""Where a process of a frozen container waits (wchan): freezers of cgroup v1 and v2.

Some compilers put the second into the third, in which a process sleeps for no other reason."""


class Clock:
    """CLOCK_MONOTONIC without the time in which this process, or its child, could not run.

    No deadline may pass during SIGSTOP, in a frozen container, or while a machine migrates. It is
    read at every tick of a wait: a tick that comes late shows how long this process could not run.
    """

    def __init__(self) -> None:
        self.stopped_s = 0.0
        """How long this process was stopped since `bound`, without waits for a CPU."""
        self._excluded_s = 0.0
        self._tick_s = self._cpu_s = 0.0
        """The last tick, and the time in which this process had a CPU or waited for one by then."""
        self._end_s: float | None = None

    def bound(self, deadline: float) -> None:
        """Exclude pauses from now on, but end all waiting at `deadline` (time.monotonic).

        Without `bound` this is CLOCK_MONOTONIC, for an entry that counts pauses.
        """
        self._end_s, self._tick_s, self._cpu_s = deadline, time.monotonic(), sum(_scheduled("self"))

    def now(self) -> float:
        """Seconds. Call it several times a second: a longer gap counts as a pause."""
        now_s = time.monotonic()
        if self._end_s is not None:
            late_s, cpu_s = now_s - self._tick_s - _TICK_S, sum(_scheduled("self"))
            stopped_s = late_s - (cpu_s - self._cpu_s)
            self._excluded_s += max(0.0, late_s - _TICK_SLACK_S)
            self.stopped_s += stopped_s if stopped_s > _TICK_SLACK_S else 0.0
            self._tick_s, self._cpu_s = now_s, cpu_s
        return now_s - self._excluded_s

    def left_s(self, until: float) -> float:
        """Seconds until `until`, or until the end of all waiting if sooner; not below 0."""
        left_s = until - self.now()
        if self._end_s is not None:
            left_s = min(left_s, self._end_s - self._tick_s)
        return max(0.0, left_s)

    def skip(self, seconds: float) -> None:
        """Exclude the last `seconds`, in which the child was stopped."""
        if self._end_s is not None:
            self._excluded_s += seconds


clock = Clock()
"""The clock of this process: every `until` in this module is in its seconds."""


class Calls:
    """The successive calls of a child, and how long it waited in each (`Waiting`).

    The child writes the start time of its current call into shared memory. Its parent identifies
    calls by that time, and so excludes a pause from the call in which it happened.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 8)
        self._current = 0.0
        self._waited_s: dict[float, float] = {}

    def begin(self) -> float:
        """In the child: note that a call begins; return the time."""
        began = time.monotonic()
        struct.pack_into("d", self._shared, 0, began)
        return began

    def note(self, since: float, now: float, waited_s: float) -> None:
        """In the parent: add a tick; two calls in one tick share it at the second one's start."""
        before, (self._current,) = self._current, struct.unpack_from("d", self._shared, 0)
        shares = [(before, waited_s)]
        if self._current != before:
            shares = [(before, self._current - since), (self._current, now - self._current)]
        for began, share_s in shares:
            more_s = max(0.0, min(waited_s, share_s))
            self._waited_s[began] = self._waited_s.get(began, 0.0) + more_s

    def waited_s(self, began: float, took_s: float) -> float:
        """Return how long the child waited in a call that took `took_s` by its own clock.

        A call that no tick noted was shorter than a tick.
        """
        return min(took_s, self._waited_s.get(began, _TICK_S))


class Waiting:
    """How long a child waits for the driver, measured by its parent at every tick.

    That is the time in which it sleeps in the kernel, and CPU time that it uses. It excludes time
    in which it could run but had no CPU (state R, or the kernel's run delay), was stopped or
    frozen, and time in which this parent was stopped. So other users' load neither makes a driver
    look slow nor hides a hung one.
    """

    def __init__(self, pid: int, calls: Calls | None) -> None:
        self.seconds = 0.0
        self.began = time.monotonic()
        self._calls, self._pid = calls, pid
        self._tick = self._read_clocks()

    def note(self, state: str) -> None:
        """Add the time since the last tick; `state` is the child's state, "" if it ended."""
        before, self._tick = self._tick, self._read_clocks()
        passed_s, stopped_s, ran_s, starved_s = (b - a for a, b in zip(before, self._tick))  # noqa: B905 (Python 3.8)
        waited_s = ran_s if state == "R" else max(0.0, passed_s - stopped_s - starved_s)
        if state in _STOPPED:
            waited_s = 0.0
        self.seconds += waited_s
        if self._calls is not None:
            self._calls.note(before[0], self._tick[0], waited_s)

    def _read_clocks(self) -> tuple[float, ...]:
        """The time, this process's own stops, and the child's times with and without a CPU."""
        return (time.monotonic(), clock.stopped_s, *_scheduled(self._pid))


_STOPPED = ("T", "t")


def _scheduled(pid: int | str) -> tuple[float, float]:
    return procfs.scheduled(pid) or (0.0, 0.0)


class BrokenError(Exception):
    """The child ended without an answer; the text has the reason."""


MOST_BYTES = 32 << 20
"""Most output of one child: twice the largest default ring buffer of kernels."""

_open_children: dict[int, Child] = {}
"""Children whose output is not complete, by their pipes."""


class Child:
    """One forked helper and its output so far.

    `listen` reads the output of all children, whichever it waits for, so that no child blocks on a
    full pipe while the parent waits for another.
    """

    def __init__(self, pid: int, pipe: int, most: int, calls: Calls | None = None) -> None:
        self.pid = pid
        self.output = bytearray()
        self.ended = math.inf
        """When its output was complete, or exceeded `most` bytes; no more is read then."""
        self.status: int | None = None
        """Wait status, once it has ended."""
        self.waiting = Waiting(pid, calls)
        self._pipe, self.most = pipe, most
        _open_children[pipe] = self

    def listen(self, until: float = math.inf, *, most_s: float = math.inf) -> bool:
        """Read until its output is complete (True), or until `until` (False).

        `most_s`: or until the child itself has waited that long.
        """
        while self._pipe in _open_children:
            tick_s = min(clock.left_s(until), _TICK_S)
            if not self._read(tick_s):
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

    def _read(self, seconds: float) -> bool:
        """Read all children's output until some of this one came (True), or time is up (False)."""
        deadline, before = time.monotonic() + seconds, len(self.output)
        while self._pipe in _open_children:
            poll, left_s = select.poll(), max(0.0, deadline - time.monotonic())
            for pipe in _open_children:
                poll.register(pipe, select.POLLIN)
            readable = poll.poll(left_s * 1000)
            for pipe, _ in readable:
                child, chunk = _open_children[pipe], os.read(pipe, 65536)
                child.output += chunk
                if not chunk or len(child.output) > child.most:
                    del _open_children[pipe]
                    child.ended = time.monotonic()
            if len(self.output) > before:
                return True
            if not (readable and left_s):
                return False
        return True

    def value(self) -> Any:
        """Return the result of `spawn`ed work; BrokenError with the reason if it failed."""
        try:
            answer = json.loads(self.output.decode())
        except ValueError:
            raise BrokenError("its process ended without an answer") from None
        if "failed" in answer:
            raise BrokenError(answer["failed"])
        return answer["value"]

    def dismiss(self, *, kill: bool) -> bool:
        """Close its pipe, and return whether it ended; a survivor is left behind."""
        if kill:
            children.end(self.pid)
        _open_children.pop(self._pipe, None)
        os.close(self._pipe)
        until = clock.now() + GRACE_S
        while not self._reaped():
            if clock.now() > until:
                children.end(self.pid)
                return self._reaped()
            time.sleep(0.002)
        return True

    def _state(self) -> str:
        """Its state in /proc/PID/stat; "T", as of a stopped process, if it is frozen."""
        stat = procfs.look(self.pid)
        frozen = stat is not None and procfs.wchan(self.pid) in _FREEZERS
        return "T" if frozen else stat.state if stat is not None else ""

    def _reaped(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == 0:
                return False
            self.status = status
        return True


def spawn(
    work: Callable[..., Any], *arguments: object, calls: Calls | None = None, most: int = MOST_BYTES
) -> Child:
    """Start `work(*arguments)` in a child of its own; its result must be plain JSON.

    `calls`: where the work notes the start of each of its calls. `most`: bytes of output to read.
    """

    def run(pipe: int) -> None:
        try:
            answer = {"value": work(*arguments)}
        except Exception as error:  # noqa: BLE001 (a section's error must not affect the others)
            answer = {"failed": words(error)}
        with open(pipe, "wb", buffering=1 << 16) as file:
            file.write(json.dumps(answer).encode("ascii"))

    return _fork(run, most, calls)


def answer_of(name: str, child: Child, until: float, complain: Callable[[str], None]) -> Any:
    """Return the answer of a section's child; on failure None, with the reason to `complain`."""
    answered = child.listen(until)
    if not child.dismiss(kill=not answered):
        complain(f"{name}: its reader {child.pid} cannot be killed")
    try:
        if answered:
            return child.value()
        complain(f"{name}: no answer in time")
    except BrokenError as error:
        complain(f"{name}: {error}")
    return None


def spawn_program(
    argv: list[str], environ: Mapping[str, str], *, errors: bool = False, most: int = MOST_BYTES,
    become: Callable[[], None] | None = None,
) -> Child:  # fmt: skip
    """Start a program and read its standard output; its standard error too with `errors`.

    `become`: gives up rights in the child, which may then no longer reach the program by its path.
    """

    def run(pipe: int) -> None:
        os.dup2(pipe, 1)
        if errors:
            os.dup2(pipe, 2)
        program: int | str = argv[0]
        if become is not None:
            program = os.open(argv[0], os.O_RDONLY)
            os.set_inheritable(program, True)  # noqa: FBT003 (for the interpreter of a script)
            become()
        os.execve(program, argv, environ)  # noqa: S606 (no shell is wanted)

    return _fork(run, most)


def spawn_tool(
    argv: Sequence[str], folders: Iterable[str], *, errors: bool = False, most: int = MOST_BYTES
) -> Child | None:
    """Start the first program of that name in these folders, in English; None if there is none."""
    for path in (f"{folder}/{argv[0]}" for folder in folders if folder):
        if os.path.isfile(path) and os.access(path, os.X_OK):
            environ = {**os.environ, "LC_ALL": "C"}
            return spawn_program([path, *argv[1:]], environ, errors=errors, most=most)
    return None


def _fork(run: Callable[[int], None], most: int, calls: Calls | None = None) -> Child:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        clock.now()
        os.close(write_end)
        return Child(pid, read_end, most, calls)
    try:
        _open_children.clear()
        children.default_signals()
        children.redirect_streams()
        children.close_all_but({write_end})
        run(write_end)
        os._exit(0)
    finally:
        os._exit(1)
