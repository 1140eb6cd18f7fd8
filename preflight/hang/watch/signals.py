"""The processes that a watch starts, and their signals: as if the launch ran without a watch.

The launch gets each signal once, and the watch ends the way the launch did.

Ctrl-C, `kill -- -GROUP`, Slurm's scancel and systemd signal every process themselves. A wrapper
that forwarded such a signal would deliver it twice, and a second SIGTERM disturbs torchrun while it
ends its ranks. A witness process that leaves signals pending shows which ones came to the group.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from preflight.hang.watch.progress import pending_signals

PASSED: frozenset[int] = frozenset(
    {
        signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM,
        signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF,
        signal.SIGWINCH, signal.SIGIO, signal.SIGPWR, signal.SIGTSTP, signal.SIGCONT,
        *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
    }
)  # fmt: skip
"""All signals that users send and that can be waited for."""

ENDING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
"""Signals whose sender wants the launch to end: then its end is not explained."""


_CHANGED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these signals; its children must not."""

_LOOKS, _BETWEEN_S = 200, 0.005
"""Together a second for a killed process to end."""


class Children:
    """Starts processes, and records how each ended."""

    def __init__(self, mask: Iterable[int]) -> None:
        """`mask`: the signals that were blocked before the watch blocked its own."""
        self._mask = frozenset(mask)
        self._ended: dict[int, int] = {}
        self._started: set[int] = set()

    def start(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        files: Sequence[tuple[Any, ...]] = (),
        *,
        blocked: Iterable[int] = (),
        default: Iterable[int] = (),
    ) -> int:
        """Start a process by the PATH in `environ`; OSError if that fails.

        `files`: file actions of `os.posix_spawn`. The process gets the descriptors that the watch
        inherited, but not those that it opened.
        """
        program = shutil.which(words[0], path=environ.get("PATH")) or words[0]
        pid = os.posix_spawnp(
            program, list(words), environ,
            file_actions=list(files),
            setsigmask=self._mask | frozenset(blocked),
            setsigdef=[*_CHANGED_BY_PYTHON, *default],
        )  # fmt: skip
        self._started.add(pid)
        return pid

    def reap(self) -> None:
        """Record all children that have ended; adopted orphans are reaped and dropped."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self._started:
                    self._ended[pid] = status

    def status(self, pid: int) -> int | None:
        """Its status from waitpid; None while it runs."""
        return self._ended.get(pid)

    def end(self, pid: int) -> None:
        """Kill a child; one that hangs in the kernel (D state) is left behind."""
        self.reap()
        if pid in self._ended:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        for _ in range(_LOOKS):
            self.reap()
            if pid in self._ended:
                return
            time.sleep(_BETWEEN_S)


class Received(NamedTuple):
    """A received signal."""

    number: int
    from_kernel: bool
    """It comes from the terminal, which signals its whole foreground group."""


_SI_KERNEL = 0x80


def block() -> frozenset[int]:
    """Block the signals, so that `wait` receives them; return those blocked before."""
    return frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, PASSED | {signal.SIGCHLD}))


def wait(seconds: float) -> Received | None:
    """Sleep until a signal comes, a process ends (SIGCHLD), or the time is over (None)."""
    info = signal.sigtimedwait(PASSED | {signal.SIGCHLD}, max(seconds, 0.0))
    return None if info is None else Received(info.si_signo, info.si_code == _SI_KERNEL)


class Relay:
    """Forwards signals to the launch that only the watch received."""

    def __init__(self, launch: int, children: Children, witness: Witness) -> None:
        self._launch = launch
        self._children = children
        self._witness = witness
        self.asked_to_end = False
        """Whether a user ended the launch on purpose."""

    def take(self, received: Received) -> None:
        """Handle one signal; a stop (Ctrl-Z) also stops the watch here, until it is continued."""
        self.asked_to_end |= received.number in ENDING
        # A signal of the terminal reaches the launch too: it is in the same foreground group.
        if not received.from_kernel and not self._witness.has_received(received.number):
            self._children.reap()
            if self._children.status(self._launch) is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(self._launch, received.number)
        if received.number == signal.SIGTSTP:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
            os.kill(os.getpid(), signal.SIGTSTP)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})


def end_as(status: int) -> int:
    """Die by the signal that ended the launch; otherwise return its exit code."""
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    # The launch has written its core, if any; the watch's would overwrite it.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with suppress(OSError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number  # process 1 of a container survives its own signal


_SENDERS_LOOP_S = 0.1
"""A sender that signals a job's processes one by one may reach the watch first."""


class Witness:
    """A `cat` in the same process group, with all signals blocked, that ends with the watch."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._pid = self._pipe_end = -1
        self._renew()

    def has_received(self, number: int) -> bool:
        """Whether it got that signal too; False without a witness."""
        if self._pid < 0:
            return False
        time.sleep(_SENDERS_LOOP_S)
        received = number in pending_signals(self._pid)
        if received:
            self._renew()
        return received

    def dismiss(self) -> None:
        """End it."""
        if self._pid >= 0:
            os.close(self._pipe_end)
            self._children.end(self._pid)
            self._pid = -1

    def _renew(self) -> None:
        """Start a new one without pending signals."""
        self.dismiss()
        read_end, self._pipe_end = os.pipe()
        try:
            self._pid = self._children.start(
                ["cat"], os.environ,
                [
                    (os.POSIX_SPAWN_DUP2, read_end, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                blocked=PASSED,
                default=PASSED,
            )  # fmt: skip
        except OSError:
            os.close(self._pipe_end)
        finally:
            os.close(read_end)


_LONGEST = 64 << 10


class ModuleRun:
    """Runs a module of preflight as a process, until it ends or its time is over."""

    def __init__(
        self, children: Children, module: str, words: Sequence[str], most_s: float
    ) -> None:
        """OSError if no process can be started."""
        self._children = children
        self._output, write_end = os.pipe()
        os.set_blocking(self._output, False)
        self._text = b""
        self.until_s = time.monotonic() + most_s
        try:
            self._pid = children.start(
                [sys.executable, "-P", "-m", module, *words],
                os.environ,
                [
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, write_end, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
            )
        except OSError:
            os.close(self._output)
            raise
        finally:
            os.close(write_end)

    def over(self) -> bool:
        """Whether it has ended; kills it when its time is over."""
        self._children.reap()
        self._read_output()
        if time.monotonic() >= self.until_s:
            self._children.end(self._pid)
        return self._children.status(self._pid) is not None

    def conclude(self) -> tuple[int, str]:
        """Kill it if it still runs; return its exit code (negative: a signal) and its output."""
        self._children.end(self._pid)
        self._read_output()
        os.close(self._output)
        status = self._children.status(self._pid)
        code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
        return code, self._text.decode("utf-8", "replace")

    def _read_output(self) -> None:
        """Read its output so far: a full pipe would block it."""
        with suppress(BlockingIOError):
            while text := os.read(self._output, _LONGEST):
                self._text = (self._text + text)[:_LONGEST]
