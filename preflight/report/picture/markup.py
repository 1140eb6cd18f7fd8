"""Names and sentences of strangers as text of a page, never as its markup."""

from __future__ import annotations

import html

from preflight.report.text import printable

_LABEL = 26


def text(words: str) -> str:
    """Escape for an element or a quoted attribute; control characters are dropped."""
    return html.escape(printable(words))


def label(name: str) -> str:
    """Cut a name to what fits beside a row, and escape it."""
    return text(name if len(name) <= _LABEL else f"{name[: _LABEL - 1]}…")


def number(value: float) -> str:
    """Write a coordinate in few characters: a large fabric has thousands."""
    return f"{value:.1f}".rstrip("0").rstrip(".")
