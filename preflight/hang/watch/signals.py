"""The processes that a watch starts, and their signals: as if nobody stood before the launch.

Signals reach the launch once, and its end becomes ours.

Ctrl-C, `kill -- -GROUP`, Slurm's scancel and systemd signal every process by themselves. A wrapper
that passed such a signal on would deliver it twice, and torchrun takes a second SIGTERM while it
still ends its ranks. A process beside us that leaves signals pending shows which it was.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from preflight.hang.watch.progress import pending_signals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


PASSED: frozenset[int] = frozenset(
    {
        signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM,
        signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF,
        signal.SIGWINCH, signal.SIGIO, signal.SIGPWR, signal.SIGTSTP, signal.SIGCONT,
        *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
    }
)  # fmt: skip
"""All that somebody sends on purpose and that can be waited for."""

ENDING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
"""Who sends one of these wants the launch to end: he is not told why it ended."""


_CHANGED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these from its start; what it starts must not."""

_LOOKS, _BETWEEN_S = 200, 0.005
"""A second for a killed process to be gone."""


class Children:
    """Starts processes, and knows how each ended."""

    def __init__(self, mask: Iterable[int]) -> None:
        """`mask`: the signals that were blocked before we blocked ours."""
        self._mask = frozenset(mask)
        self._ended: dict[int, int] = {}
        self._ours: set[int] = set()

    def start(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        files: Sequence[tuple[Any, ...]] = (),
        *,
        blocked: Iterable[int] = (),
        default: Iterable[int] = (),
    ) -> int:
        """Start one by the PATH that it gets; OSError where it cannot be.

        `files`: as `os.posix_spawn` takes them.
        Descriptors that we inherited are its own too; those that we opened are not.
        """
        program = shutil.which(words[0], path=environ.get("PATH")) or words[0]
        pid = os.posix_spawnp(
            program, list(words), environ,
            file_actions=list(files),
            setsigmask=self._mask | frozenset(blocked),
            setsigdef=[*_CHANGED_BY_PYTHON, *default],
        )  # fmt: skip
        self._ours.add(pid)
        return pid

    def reap(self) -> None:
        """Take note of all that have ended; orphans that were given to us are let go."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self._ours:
                    self._ended[pid] = status

    def status(self, pid: int) -> int | None:
        """How it ended, as waitpid tells it; None while it runs."""
        return self._ended.get(pid)

    def end(self, pid: int) -> None:
        """End one of ours; one that the kernel does not let go (D state) is left behind."""
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


class Came(NamedTuple):
    """A signal that came."""

    number: int
    from_kernel: bool
    """From the terminal, whose whole foreground group gets it."""


_SI_KERNEL = 0x80


def block() -> frozenset[int]:
    """From now on they wait until they are asked for; what was blocked before is the answer."""
    return frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, PASSED | {signal.SIGCHLD}))


def wait(seconds: float) -> Came | None:
    """Sleep until a signal comes, a process ends (SIGCHLD), or the time is over (None)."""
    got = signal.sigtimedwait(PASSED | {signal.SIGCHLD}, max(seconds, 0.0))
    return None if got is None else Came(got.si_signo, got.si_code == _SI_KERNEL)


class Relay:
    """Passes on to the launch what was meant for us alone."""

    def __init__(self, launch: int, children: Children, witness: Witness) -> None:
        self._launch = launch
        self._children = children
        self._witness = witness
        self.asked_to_end = False
        """Whether somebody ended the launch on purpose."""

    def take(self, came: Came) -> None:
        """Deal with one signal; a stop (Ctrl-Z) stops us too, here, until we are continued."""
        self.asked_to_end |= came.number in ENDING
        # The terminal's reach its whole foreground group, which the launch shares with us.
        if not came.from_kernel and not self._witness.saw(came.number):
            self._pass_on(came.number)
        if came.number == signal.SIGTSTP:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
            os.kill(os.getpid(), signal.SIGTSTP)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})

    def _pass_on(self, number: int) -> None:
        self._children.reap()
        if self._children.status(self._launch) is None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._launch, number)


def end_as(status: int) -> int:
    """Die by the signal that the launch died by; else its exit code, to exit with."""
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    # The launch has left its core, if any; ours would be written over it.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with suppress(OSError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number  # as process 1 of a container, whom that does not end


_SENDERS_LOOP_S = 0.1
"""Who signals every process of a job one by one may come to us first."""


class Witness:
    """A `cat` in our process group, with every signal blocked, that ends when we do."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._pid = self._end = -1
        self._renew()

    def saw(self, number: int) -> bool:
        """Whether it got that signal too; False where there is no witness."""
        if self._pid < 0:
            return False
        time.sleep(_SENDERS_LOOP_S)
        saw = number in pending_signals(self._pid)
        if saw:
            self._renew()
        return saw

    def dismiss(self) -> None:
        """Let it end."""
        if self._pid >= 0:
            os.close(self._end)
            self._children.end(self._pid)
            self._pid = -1

    def _renew(self) -> None:
        """A new one, on which nothing lies."""
        self.dismiss()
        theirs, self._end = os.pipe()
        try:
            self._pid = self._children.start(
                ["cat"], os.environ,
                [
                    (os.POSIX_SPAWN_DUP2, theirs, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                blocked=PASSED,
                default=PASSED,
            )  # fmt: skip
        except OSError:
            os.close(self._end)
        finally:
            os.close(theirs)


_LONGEST = 64 << 10


class ModuleRun:
    """A module of ours as a process, until it ends or its time is over."""

    def __init__(
        self, children: Children, module: str, words: Sequence[str], most_s: float
    ) -> None:
        """OSError where no process can be started."""
        self._children = children
        self._said, theirs = os.pipe()
        os.set_blocking(self._said, False)
        self._text = b""
        self.until_s = time.monotonic() + most_s
        try:
            self._pid = children.start(
                [sys.executable, "-P", "-m", module, *words],
                os.environ,
                [
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, theirs, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
            )
        except OSError:
            os.close(self._said)
            raise
        finally:
            os.close(theirs)

    def over(self) -> bool:
        """Whether it has ended; it is ended where its time is over."""
        self._children.reap()
        self._hear()
        if time.monotonic() >= self.until_s:
            self._children.end(self._pid)
        return self._children.status(self._pid) is not None

    def conclude(self) -> tuple[int, str]:
        """End it where it still runs; its exit code (negative: by that signal) and what it said."""
        self._children.end(self._pid)
        self._hear()
        os.close(self._said)
        status = self._children.status(self._pid)
        code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
        return code, self._text.decode("utf-8", "replace")

    def _hear(self) -> None:
        """Take what it has said so far: a full pipe would hold it up."""
        with suppress(BlockingIOError):
            while text := os.read(self._said, _LONGEST):
                self._text = (self._text + text)[:_LONGEST]
