"""`preflight healthcheck`: this node with all its GPUs, from time to time, for Slurm or cron.

`preflight prolog` is the same of the GPUs of the job that is about to start, in seconds.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NoReturn

from preflight.commands.run import start

if TYPE_CHECKING:
    from collections.abc import Sequence


PROGRAM: Final = """
import os, sys
try:
    from preflight.hook.entry import main
except BaseException as error:
    told = "preflight: it cannot be loaded (%s), so this node was not judged; install it again"
    sys.stderr.write(told % type(error).__name__ + chr(10))
    os._exit(2 if "--plain" in sys.argv else int("--fail-closed" in sys.argv))
main()
"""
"""For `python -I -c`: Python itself exits 1 where a module cannot be loaded, as for a sick node."""


def run(words: Sequence[str]) -> NoReturn:
    """Become an isolated Python that judges and acts; `words` begin with the verb."""
    os.umask(0o027)
    start(words, program=PROGRAM, quiet=True)
