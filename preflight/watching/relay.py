"""Signals reach the launch once, and its end becomes ours: as if nobody stood between."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from preflight.watching import signals

if TYPE_CHECKING:
    from preflight.watching.children import Children
    from preflight.watching.witness import Witness


class Relay:
    """Passes on to the launch what was meant for us alone."""

    def __init__(self, launch: int, children: Children, witness: Witness) -> None:
        self._launch = launch
        self._children = children
        self._witness = witness
        self.asked_to_end = False
        """Whether somebody ended the launch on purpose."""

    def take(self, came: signals.Came) -> None:
        """Deal with one signal; a stop (Ctrl-Z) stops us too, here, until we are continued."""
        self.asked_to_end |= came.number in signals.ENDING
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
