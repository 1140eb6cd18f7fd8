"""The `preflight` command begins here: a Ctrl-C waits until the rest is loaded and can answer it.

Standard library only, and nothing before the signal is blocked: an interrupted import of a module
would print a traceback. `cli` lets the signal through again.
"""

from __future__ import annotations

import signal
import sys

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])

from preflight.cli import main  # noqa: E402  the signal is blocked first

if __name__ == "__main__":
    sys.exit(main())
