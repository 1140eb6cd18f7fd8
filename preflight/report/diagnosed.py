"""A diagnosis laid out for a terminal: whom the job waits for, the line, then who stands where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.report.text import printable, wrapped
from preflight.triage.diagnose.words import folded

if TYPE_CHECKING:
    from preflight.triage.diagnose.model import Diagnosis

_INDENT = " " * 10
_ROWS = 12
"""Of the table; what else there is, is in --json."""


def lines(told: Diagnosis, width: int) -> list[str]:
    """Everything of it, wrapped."""

    def row(label: str, text: str) -> list[str]:
        return wrapped(text, first=f"{label:<10}", indent=_INDENT, width=width) if text else []

    def rows(label: str, texts: list[str]) -> list[str]:
        shown: list[str] = []
        for number, text in enumerate(texts):
            shown += row("" if number else label, text)
        return shown

    shown = [f"{told.category}  ({_sure(told.confidence)})", *row("what", told.sentence)]
    shown += row("who", _who(told.culprits))
    shown += row("line", told.line)
    shown += row("do", told.advice)
    shown += row("next", told.next)
    shown += rows("proof", list(told.evidence))
    shown += rows(
        "or",
        [f"{one.category} ({one.confidence:.0%}): {one.sentence}" for one in told.alternatives],
    )
    table = [f"{folded(one.ranks)}  {one.what or one.where}" for one in told.standings]
    left = len(table) - _ROWS
    shown += rows("ranks", table[:_ROWS] + [f"and {left} more rows: --json"] * (left > 0))
    shown += rows("unseen", list(told.unseen))
    return [_cut(printable(line), width) for line in shown]


def _who(culprits: tuple[str, ...]) -> str:
    """Ranks folded, the rest as it is."""
    numbers = [int(one[5:]) for one in culprits if one.startswith("rank ") and one[5:].isdecimal()]
    words = [one for one in culprits if not (one.startswith("rank ") and one[5:].isdecimal())]
    folded_ranks = [f"rank{'s' * (len(numbers) > 1)} {folded(numbers)}"] if numbers else []
    return ", ".join([*folded_ranks, *words])


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: max(width - 3, 1)] + "..."


def _sure(confidence: float) -> str:
    return f"{confidence:.0%} sure" if confidence else "not a guess"
