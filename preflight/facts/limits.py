"""The numbers behind judgements, with where each comes from: an operator may ask."""

from __future__ import annotations

from preflight.numbers import Limit, number, shipped

__all__ = ["Limit", "limit", "limits"]


def limits() -> dict[str, Limit]:
    """Every threshold of `limits.toml` by name; those of backends have a dot in theirs."""
    return {name: one for name, one in shipped().items() if "." not in name}


def limit(name: str) -> float:
    """The number in force, in the unit that its name ends with: the inventory may set another."""
    found = number(name)
    if found is None:
        raise KeyError(name)
    return found
