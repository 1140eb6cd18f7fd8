"""Pairs that were tried and say nothing: `preflight blame` names them, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.fabric.observed import Observed, Tried

_MOST = 8


def untold(one: Tried) -> bool:
    """Whether a pair was not judged for a reason that is said: no other rail clears it."""
    return one.state == "not_run" and bool(one.error)


def untold_words(observed: Observed) -> Iterator[str]:
    """One line for each reason."""
    found: dict[str, dict[str, None]] = {}
    for one in filter(untold, observed.tried):
        found.setdefault(one.error, {})[f"{one.a}-{one.b}"] = None
    for why, pairs in found.items():
        more = f" and {len(pairs) - _MOST} more" if len(pairs) > _MOST else ""
        yield f"not judged: {', '.join([*pairs][:_MOST])}{more}: {why}"
