"""The numbers behind the burn-in's judgement, with where each comes from: an operator may ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.numbers import number

if TYPE_CHECKING:
    from preflight.facts.burned import Kind


def limit(kind: Kind, name: str) -> float:
    """The number in force; KeyError for a name that is not in the table."""
    found = known(kind, name)
    if found is None:
        raise KeyError(f"{kind}.{name}")
    return found


def known(kind: Kind, name: str) -> float | None:
    """The number in force; None where there is none."""
    return number(f"{kind}.{name}")
