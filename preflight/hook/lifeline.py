"""Nothing of the hook outlives it: nobody would log what an orphan tells the scheduler.

Standard library only. Without ctypes the kernel is not asked, and only `orphaned` tells.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_PDEATHSIG: Final = 1
"""linux/prctl.h"""

_PARENT: Final[list[int]] = []
"""The process that says what we did; empty where this one says it itself."""


def bind(parent: int) -> None:
    """Be sent SIGTERM by the kernel when `parent`, a pid, ends; end at once if it has."""
    _PARENT[:] = [parent]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if (ask := _asking(signal.SIGTERM)) is not None:
        ask()
    if orphaned():  # it ended between our fork and the lines above
        os._exit(0)


def orphaned() -> bool:
    """Whether the process that would say what we do has ended."""
    return bool(_PARENT) and os.getppid() != _PARENT[0]


def leash() -> Callable[[], None] | None:
    """Return what a program is to run before it begins, so that SIGKILL ends it when we end.

    Nothing is imported or looked up in there: it runs between fork and exec.
    """
    ask, parent = _asking(signal.SIGKILL), os.getpid()
    if ask is None:
        return None

    def begin() -> None:
        ask()
        if os.getppid() != parent:
            os._exit(1)

    return begin


def _asking(number: signal.Signals) -> Callable[[], object] | None:
    """Return what asks the kernel for that signal at our parent's end; None without ctypes."""
    try:
        import ctypes

        prctl, value = ctypes.CDLL(None).prctl, int(number)
    except (ImportError, OSError, AttributeError):
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, value, 0, 0, 0)
