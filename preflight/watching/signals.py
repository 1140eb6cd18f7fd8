"""Which signals a watch passes on, and the waiting for them."""

from __future__ import annotations

import signal
from typing import NamedTuple

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
