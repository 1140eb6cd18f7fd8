"""The `preflight` command begins here: a Ctrl-C waits until the rest is loaded and can answer it.

Standard library only, and nothing before the signal is blocked: an interrupted import of a module
would print a traceback. `until_interrupted` lets the signal through again. The scheduler's hook
does not wait for the other verbs to load.
"""

from __future__ import annotations

import signal
import sys

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])

from preflight.commands import open_streams, start_hook  # noqa: E402  the signal is blocked first


def main(argv: list[str] | None = None) -> int:
    """Run the verb that was typed, and return its exit code."""
    open_streams()
    start_hook(sys.argv[1:] if argv is None else argv)
    from preflight.commands.cli import main as run_verb

    return run_verb(argv)


if __name__ == "__main__":
    sys.exit(main())
