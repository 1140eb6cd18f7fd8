"""A wave: `preflight run` in a process of its own, which ends when the sweep's does.

Started as `python -I -m preflight.commands.nightly.child PID LOCK WORDS...` by the sweep with
that process id. A sweep that is killed cannot tell its wave: the kernel does, and the wave writes
down what it knows and leaves its nodes, as after any SIGTERM.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_PR_SET_PDEATHSIG: Final = 1
"""prctl(2), Linux."""


def main(argv: Sequence[str]) -> int:
    """Judge as `preflight run WORDS` does; the exit codes are the same."""
    parent, lock, *words = argv
    end_with(int(parent))
    # Held by this process, and by nothing that it starts.
    fcntl.fcntl(int(lock), fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    from preflight.commands.run import main as judge

    return judge(words)


def end_with(parent: int) -> None:
    """Have the kernel send SIGTERM when the parent dies; leave if it has died by now."""
    with suppress(OSError, AttributeError):  # another kernel: then Ctrl-C and SIGTERM are passed on
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
