"""An explanation laid out for a terminal: the sentence first, then the proof, then what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.report.text import printable, wrapped

if TYPE_CHECKING:
    from preflight.triage.explain.model import Explanation

_INDENT = " " * 10


def lines(told: Explanation, width: int) -> list[str]:
    """Everything of it, wrapped."""

    def row(label: str, text: str) -> list[str]:
        return wrapped(text, first=f"{label:<10}", indent=_INDENT, width=width) if text else []

    shown = [f"{told.category}  ({_sure(told.confidence)})", *row("what", told.sentence)]
    shown += row("who", ", ".join(told.culprits) or "not told by these lines")
    shown += row("why", told.cause)
    shown += row("do", told.advice)
    shown += row("next", told.next)
    for place, proof in enumerate(told.evidence):
        label = "proof" if place == 0 else ""
        shown += row(label, f"{proof.source}:{proof.line}: {proof.text}")
    for place, other in enumerate(told.alternatives):
        label = "or" if place == 0 else ""
        sure = f" ({other.confidence:.0%})" if other.confidence else ""
        shown += row(label, f"{other.category}{sure}: {other.sentence}")
    return [printable(line) for line in shown]


def _sure(confidence: float) -> str:
    return f"{confidence:.0%} sure" if confidence else "not a guess"
