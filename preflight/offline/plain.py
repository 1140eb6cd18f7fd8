"""A captured text without what would steer a terminal: colours, cursor moves, control characters.

Names in it become part of sentences; one that holds an escape sequence must not reach a screen.
"""

from __future__ import annotations

import re
from typing import Final

_ESCAPE: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def plain(text: str) -> str:
    """Keep what can be printed, blanks and tabs; every kind of line end becomes a newline."""
    return "\n".join(map(_line, _ESCAPE.sub("", text).splitlines())) + "\n" * text.endswith("\n")


def _line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char for char in text if char.isprintable() or char == "\t")
