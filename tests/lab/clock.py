"""A host whose clocks are not like the others': the date is off, or set while something runs.

All hosts of a lab share this machine's wall clock, so a library stands before it; the steady clock
is moved by a time namespace.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_UP_FOR_S = 8_640_000
"""How long the host seems to have been up: its steady clock has nothing to do with ours."""


class Clock:
    """The clocks of whatever runs with `python` in place of the host's Python."""

    def __init__(self, folder: Path) -> None:
        self._off = folder / "clock"
        self._library = folder / "libclock.so"
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        source = Path(__file__).with_name("clock.c")
        subprocess.run(["gcc", *flags, "-o", self._library, source, "-ldl"], check=True)
        self.set(0)

    @property
    def python(self) -> str:
        """For the inventory: the same Python under these clocks."""
        namespace = f"unshare --time --monotonic {_UP_FOR_S} --fork --kill-child"
        words = " ".join(f"{name}={value}" for name, value in self.environ.items())
        return f"{namespace} env {words} {sys.executable}"

    @property
    def environ(self) -> dict[str, str]:
        """For a program here, and what it starts: the date alone is off."""
        return {"LAB_CLOCK": str(self._off), "LD_PRELOAD": str(self._library)}

    def set(self, seconds: int) -> None:
        """Let the date be so far off from now on."""
        fresh = self._off.with_suffix(".new")
        fresh.write_text(f"{seconds}\n")
        fresh.replace(self._off)
