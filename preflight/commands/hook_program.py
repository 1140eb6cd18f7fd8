"""How the scheduler's hook is started: a preflight that is broken must not drain a fleet either."""

from __future__ import annotations

from typing import Final

PROGRAM: Final = """
import os, sys
try:
    from preflight.hook.outermost import main
except BaseException as error:
    told = "preflight: it cannot be loaded (%s), so this node was not judged; install it again"
    sys.stderr.write(told % type(error).__name__ + chr(10))
    os._exit(2 if "--plain" in sys.argv else int("--fail-closed" in sys.argv))
main()
"""
"""For `python -I -c`: Python itself exits 1 where a module cannot be loaded, as for a sick node."""
