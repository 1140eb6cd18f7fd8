"""An answer about a job that hangs or has died: alternatives, and its rows on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from preflight.core.text import percent, printable, wrapped

_INDENT = " " * 10


class Alternative(Struct, frozen=True):
    """Another possible answer."""

    category: str
    sentence: str
    confidence: float

    @property
    def words(self) -> str:
        """`link (40 %): the data does not get through`."""
        sure = f" ({percent(self.confidence)})" if self.confidence else ""
        return f"{self.category}{sure}: {self.sentence}"


def rows(
    category: str, confidence: float, labelled: Iterable[tuple[str, Iterable[str]]], width: int
) -> list[str]:
    """The category, then every text, wrapped; a label stands before its first text."""
    lines = [f"{category}  ({percent(confidence)} sure)" if confidence else category]
    for label, texts in labelled:
        for number, text in enumerate(texts):
            if text:
                first = f"{'' if number else label:<10}"
                lines += wrapped(text, first=first, indent=_INDENT, width=width)
    return [printable(line) for line in lines]
