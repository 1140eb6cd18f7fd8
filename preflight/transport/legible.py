"""What a node wrote, made fit for a person's terminal: it may be broken, or hostile."""

from __future__ import annotations

import re

WIDTH = 200
"""Longest quotation from a node in one of our sentences, characters."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")


def legible(text: bytes | str, width: int = WIDTH) -> str:
    """One line of printable characters, no longer than `width`; escape sequences vanish whole."""
    raw = text if isinstance(text, str) else text[: 16 * width].decode("utf-8", "replace")
    plain = _ESCAPES.sub("", raw)
    words = " ".join("".join(c if c.isprintable() else " " for c in plain).split())
    return words if len(words) <= width else words[: width - 3] + "..."


def last_line(text: bytes, width: int = WIDTH) -> str:
    """The last line that says anything: where programs put their reason for giving up."""
    for line in reversed(text[-65536:].splitlines()):
        if words := legible(line, width):
            return words
    return ""
