"""Sentences that end with the word the operator probably meant."""

from __future__ import annotations

import difflib
from typing import Any


def did_you_mean(word: str, known: Any) -> str:
    """End a sentence with the nearest known word, or with all of them if they are few."""
    near = difflib.get_close_matches(word, list(known), n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    names = sorted(known)
    return f"; known: {', '.join(names)}" if 0 < len(names) <= 16 else ""  # noqa: PLR2004  a line
