"""One running command, on a node or here: its input, output and exit, with deadlines.

Both outputs are drained during every wait, so a command that floods one of them while we write to
it or read the other never blocks. Subclasses carry the bytes.
"""

from __future__ import annotations

import atexit
import math
import os
import re
import selectors
import signal
import subprocess
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct

from preflight.errors import PreflightError

Step = Literal["name", "route", "hostkey", "login", "python", "answer"]
"""How far a connection attempt got: each step is the `reach.*` check of the same name."""


OUTPUT_LIMIT = 8 << 20
"""Bytes of standard output after which a command is cut off, unless its caller says otherwise."""


SEND_S = 30.0
"""How long a command may leave its input unread before we give up."""


class ReachError(PreflightError):
    """A node could not be used: `step` says how far the attempt got, `advice` what to do."""

    def __init__(self, step: Step, sentence: str, advice: str, *, blame: str = "") -> None:
        super().__init__(sentence)
        self.step: Step = step
        self.sentence = sentence
        self.advice = advice
        self.blame = blame
        """What is at fault in place of the node, if it lies on the way ("jump host b")."""


class Shortfall(Struct, frozen=True):
    """What a node lacks although it answers: some of the job's processes there."""

    sentence: str
    advice: str


class Answer(Struct, frozen=True):
    """The exit status and the bounded output of a finished remote command."""

    status: int | None
    """Exit status; negative for a signal (-1 where SSH does not say which).

    None if it is unknown: our deadline passed, or the connection broke.
    """
    stdout: bytes
    """What `read_line` has not taken, including an unfinished last line."""
    stderr: bytes
    """Its last 64 KiB."""
    overflow: bool = False
    """It wrote more than the limit; the rest was dropped and the command ended."""
    seconds: float = 0.0


class Connection(Protocol):
    """A login on a node that can run several commands, one after another or at once."""

    def start(self, argv: Sequence[str], *, timeout_s: float, limit: int = OUTPUT_LIMIT) -> Remote:
        """Start a command, every word quoted, under a remote deadline of its own."""

    def close(self) -> None:
        """Log out. Never raises."""


@runtime_checkable
class HasPayload(Protocol):
    """A connection to a node that has the payload already, so that it need not be sent."""

    def start_entry(self, entry: str, *, timeout_s: float, limit: int = OUTPUT_LIMIT) -> Remote:
        """Start an entry of the payload; the first thing it reads is its request."""


STDERR_KEPT = 64 << 10
"""Bytes of standard error that are kept: the last ones, which hold the reason."""


class OutputBuffer:
    """The output received so far, within bounds."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.ended = False
        """No more output will come."""
        self._out = bytearray()
        self._err = bytearray()
        self._out_seen = self._err_seen = self._searched = 0

    @property
    def overflow(self) -> bool:
        """Whether either output exceeded the limit."""
        return max(self._out_seen, self._err_seen) > self.limit

    def add_stdout(self, data: bytes) -> None:
        """Keep what fits under the limit."""
        self._out += data[: max(0, self.limit - self._out_seen)]
        self._out_seen += len(data)

    def add_stderr(self, data: bytes) -> None:
        """Keep the last STDERR_KEPT bytes."""
        self._err = (self._err + data)[-STDERR_KEPT:]
        self._err_seen += len(data)

    def cut_stderr(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """Find a pattern in the standard error that is kept, and remove it there."""
        match = pattern.search(bytes(self._err))
        if match:
            del self._err[match.start() : match.end()]
        return match

    def take_line(self) -> bytes | None:
        """The next whole line without its newline, if there is one."""
        newline = self._out.find(b"\n", self._searched)
        if newline < 0:
            self._searched = len(self._out)
            return None
        line = bytes(self._out[:newline])
        del self._out[: newline + 1]
        self._searched = 0
        return line

    def answer(self, status: int | None, seconds: float) -> Answer:
        """The finished command's answer, with all output that `take_line` has not taken."""
        return Answer(status, bytes(self._out), bytes(self._err), self.overflow, seconds)


KILL_AFTER_S = 2
"""A command that ignores its deadline's SIGTERM for this long gets SIGKILL."""

SLACK_S = 5.0
"""How much later than the remote deadline the local one is: KILL_AFTER_S and the way back."""

GRACE_S = 0.5
"""Silence after the exit that ends reading: a grandchild may hold the pipes open for ever."""

TICK_S = 0.1
"""How often we check whether a silent command has exited."""


TIMED_OUT = 124
"""Exit status of timeout(1), which may come before a clock that was started later runs out."""


def with_deadline(argv: Sequence[str], timeout_s: float) -> list[str]:
    """Put a command under timeout(1), which ends it even when no process waits for it."""
    return ["timeout", "-k", str(KILL_AFTER_S), str(max(1, math.ceil(timeout_s))), *argv]


class Remote(ABC):
    """One running remote command whose input and output are ours, over any byte streams."""

    def __init__(self, timeout_s: float, limit: int) -> None:
        self._buffer = OutputBuffer(limit)
        self._started_at = time.monotonic()
        self._expires_at = self._started_at + timeout_s + SLACK_S
        self._is_released = False
        self._status: int | None = None

    @abstractmethod
    def _write(self, data: memoryview) -> int:
        """Write what fits without blocking, 0 if nothing does; OSError if the reader is gone."""

    @abstractmethod
    def _transfer(self, wait_s: float, *, writing: bool) -> bool:
        """Move what has arrived into the buffer; wait at most `wait_s` for something to arrive.

        `writing`: stop waiting also when there is room to write. Returns whether anything arrived.
        """

    @abstractmethod
    def _exited(self, wait_s: float) -> bool:
        """Whether the command has exited; wait at most `wait_s` for it."""

    @abstractmethod
    def _release(self) -> int | None:
        """End the command, release everything, and return the status if it is known."""

    @abstractmethod
    def finish_input(self) -> None:
        """Close the command's standard input. Never raises."""

    def _release_once(self) -> int | None:
        """Release the command unless that is done already; return its status."""
        if not self._is_released:
            self._status = self._release()  # again, if a Ctrl-C cuts it short
            self._is_released = True
            self._buffer.ended = True
        return self._status

    def kill(self) -> None:
        """Close the channel, and end the process where we can. Never raises."""
        self._release_once()

    def send(self, data: bytes, deadline_s: float = SEND_S) -> None:
        """Write to its standard input, and drain its output meanwhile.

        ReachError("answer") if it is gone; TimeoutError if it does not read for that long.
        """
        deadline = self._deadline(deadline_s)
        unsent = memoryview(data)
        while unsent:
            try:
                count = self._write(unsent)
            except OSError as error:
                sentence = "it stopped reading before it had everything we sent"
                advice = "see what it wrote to standard error"
                raise ReachError("answer", sentence, advice) from error
            unsent = unsent[count:]
            if not count:
                self._transfer_once(deadline, writing=True)

    def read_line(self, deadline_s: float) -> bytes | None:
        """Return the next line of standard output without its newline; None at its end.

        Raises TimeoutError when the deadline (seconds from now) passes first, and
        ReachError("answer") when the output exceeds the limit.
        """
        deadline = self._deadline(deadline_s)
        quiet_since: float | None = None
        while (line := self._buffer.take_line()) is None:
            if self._buffer.overflow:
                raise self._too_much()
            if self._buffer.ended or _is_grace_over(quiet_since):
                return None
            quiet_since = self._transfer_until_quiet(deadline, quiet_since)
        return line

    def wait(self, deadline_s: float) -> Answer:
        """Collect the remaining output and the exit status; ends the command at the deadline."""
        deadline = self._deadline(deadline_s)
        quiet_since: float | None = None
        try:
            while not (self._buffer.ended or self._buffer.overflow or _is_grace_over(quiet_since)):
                quiet_since = self._transfer_until_quiet(deadline, quiet_since)
            if not self._buffer.overflow:
                self._exited(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            pass  # a status of None says that the deadline passed
        return self._buffer.answer(self._release_once(), time.monotonic() - self._started_at)

    def _deadline(self, deadline_s: float) -> float:
        return min(time.monotonic() + deadline_s, self._expires_at)

    def _transfer_once(self, deadline: float, *, writing: bool = False) -> bool:
        """Move bytes once; TimeoutError if no time is left and nothing has arrived.

        If this machine was suspended, the time may be over although the answer is waiting.
        """
        left_s = max(0.0, deadline - time.monotonic())
        moved = self._transfer(min(left_s, TICK_S), writing=writing)
        if not (left_s or moved):
            raise TimeoutError(f"no answer after {time.monotonic() - self._started_at:.0f} s")
        if self._buffer.overflow:
            self._release_once()
        return moved

    def _transfer_until_quiet(self, deadline: float, quiet_since: float | None) -> float | None:
        """Move bytes once; the time since which the command has exited and is silent, or None."""
        if self._transfer_once(deadline) or not self._exited(0.0):
            return None
        return quiet_since if quiet_since is not None else time.monotonic()

    def _too_much(self) -> ReachError:
        return ReachError(
            "answer",
            f"it wrote more than {self._buffer.limit >> 20} MiB where an answer was expected",
            "find what the login shell or a wrapper prints on every command, and silence it",
        )


def _is_grace_over(quiet_since: float | None) -> bool:
    return quiet_since is not None and time.monotonic() - quiet_since >= GRACE_S


CHUNK = 1 << 16
TERM_S = 0.5
"""The time between SIGTERM and SIGKILL for a command that we end."""

REAP_S = 1.0
"""How long a killed process may take to exit; one in D state stays, and is a finding."""


_STARTED: weakref.WeakSet[PipeRemote] = weakref.WeakSet()


@atexit.register
def end_leftover_commands() -> None:
    """End commands whose threads an interrupted run leaves behind.

    In a session of their own they get no Ctrl-C, and would run on until their deadline.
    """
    for remote in list(_STARTED):
        end_group(remote.process)


def run_here(
    argv: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes] | None:
    """Run a short command here; None if it cannot be started or does not end in time."""
    try:
        return subprocess.run(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def spawn(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own, to end it as a whole. OSError."""
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )


def has_exited(process: subprocess.Popen[bytes], wait_s: float = 0.0) -> bool:
    """Check without reaping: the kernel does not reuse the process group of an unreaped process."""
    deadline = time.monotonic() + wait_s
    nap_s = 0.0005
    while not _is_gone(process):
        if time.monotonic() >= deadline:
            return False
        nap_s = min(nap_s * 2, 0.02, max(0.0, deadline - time.monotonic()))
        time.sleep(nap_s)
    return True


def _is_gone(process: subprocess.Popen[bytes]) -> bool:
    if process.returncode is not None:
        return True
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        return os.waitid(os.P_PID, process.pid, options) is not None
    except ChildProcessError:  # this process ignores SIGCHLD, so the kernel has reaped the child
        return True


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the process group of an unreaped process. Never raises."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, then SIGKILL, to its process group; reaps nothing. Never raises."""
    if not has_exited(process):
        # On SIGTERM, timeout(1) reaps the command before it exits. Killed, it would leave a
        # zombie to an init that may not reap: in a container it often does not.
        signal_group(process, signal.SIGTERM)
        has_exited(process, TERM_S)
    signal_group(process, signal.SIGKILL)


class PipeRemote(Remote):
    """One process and its three pipes."""

    def __init__(self, process: subprocess.Popen[bytes], timeout_s: float, limit: int) -> None:
        super().__init__(timeout_s, limit)
        self.process = process
        pipes = [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe]
        for pipe in pipes:
            os.set_blocking(pipe.fileno(), False)
        self._stdin, self._stdout, self._stderr = pipes
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ, self._buffer.add_stdout)
        self._selector.register(self._stderr, selectors.EVENT_READ, self._add_stderr)
        self._lock = threading.Lock()
        """Any thread may end the command while another one reads or writes."""
        _STARTED.add(self)

    def _add_stderr(self, data: bytes) -> None:
        self._buffer.add_stderr(data)

    def finish_input(self) -> None:
        """Close our end of its standard input."""
        with self._lock, suppress(OSError):
            self._stdin.close()

    def _write(self, data: memoryview) -> int:
        with self._lock:
            if self._stdin.closed:
                raise BrokenPipeError
            try:
                return os.write(self._stdin.fileno(), data)
            except BlockingIOError:
                return 0

    def _transfer(self, wait_s: float, *, writing: bool) -> bool:
        with self._lock:
            if self._is_released:
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
            self._buffer.ended = not self._selector.get_map()
        return bool(data)

    def _exited(self, wait_s: float) -> bool:
        return self._is_released or has_exited(self.process, wait_s)

    def _release_once(self) -> int | None:
        with self._lock:
            return super()._release_once()

    def _release(self) -> int | None:
        exited = has_exited(self.process)
        end_group(self.process)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(REAP_S)
        self._selector.close()
        for pipe in (self._stdin, self._stdout, self._stderr):
            with suppress(OSError):
                pipe.close()
        return self.process.returncode if exited else None


class LocalConnection:
    """Starts processes here."""

    def start(
        self, argv: Sequence[str], *, timeout_s: float, limit: int = OUTPUT_LIMIT
    ) -> PipeRemote:
        """Start a command in a process group of its own, to end it as a whole."""
        try:
            process = spawn(with_deadline(argv, timeout_s))
        except OSError as error:
            raise ReachError(
                "python", f"cannot start a process here: {error}", "install coreutils' timeout"
            ) from error
        return PipeRemote(process, timeout_s, limit)

    def close(self) -> None:
        """Nothing to close."""
