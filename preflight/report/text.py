"""Words of strangers made fit for a terminal: no control characters, no surprises, 80 columns."""

from __future__ import annotations

import textwrap

LONGEST = 600
"""A sentence is for a person; what is longer is in report.json."""


def printable(text: str) -> str:
    """Drop control, format and surrogate characters and cut what is endless.

    Nodes may be hostile: an escape sequence in a process name must not reach the terminal.
    """
    kept = "".join(
        char if char.isprintable() else " " if char.isspace() else ""
        for char in text[: LONGEST * 4]
    )
    return kept if len(kept) <= LONGEST else kept[: LONGEST - 3] + "..."


def wrapped(text: str, *, first: str, indent: str, width: int) -> list[str]:
    """Wrap to the terminal's width, with a label in front of the first line."""
    return textwrap.wrap(
        printable(text),
        width=max(width, len(indent) + 20),
        initial_indent=first,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    ) or [first.rstrip()]
