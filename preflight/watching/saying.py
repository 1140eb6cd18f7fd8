"""The few lines of a watch's own, on standard error, between those of the launch."""

from __future__ import annotations

import os
from contextlib import suppress


def say(text: str) -> None:
    """Say it; where nobody can hear it, nothing happens: the launch goes on.

    Control characters, which names of files and processes can hold, do not reach the terminal.
    """
    lines = (
        "".join(char if char.isprintable() else " " for char in line) for line in text.splitlines()
    )
    shown = "".join(f"preflight: {line}".rstrip() + "\n" for line in lines)
    if os.isatty(2):
        shown = "\n" + shown  # behind a progress bar
    with suppress(OSError):
        os.write(2, shown.encode("utf-8", "replace"))


class Once:
    """Says each kind of trouble one time."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, kind: str, text: str) -> None:
        """Say it, unless something of that kind was said."""
        if kind not in self._said:
            self._said.add(kind)
            say(text)
