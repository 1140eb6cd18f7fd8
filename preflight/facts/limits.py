"""The numbers behind judgements, with where each comes from: an operator may ask."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import date


@dataclass(frozen=True, slots=True)
class Limit:
    """One threshold of `limits.toml`."""

    value: float
    unit: str
    kind: str
    source: str
    date: date


@cache
def limits() -> dict[str, Limit]:
    """Every threshold by name."""
    text = files("preflight.facts").joinpath("limits.toml").read_text(encoding="utf-8")
    return {name: Limit(**entry) for name, entry in tomllib.loads(text).items()}


def limit(name: str) -> float:
    """The number itself, in the unit that its name ends with."""
    return limits()[name].value
