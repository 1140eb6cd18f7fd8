"""The numbers behind the sweep's judgement, with where each comes from: an operator may ask."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

from preflight.facts.limits import Limit


@cache
def limits() -> dict[str, dict[str, Limit]]:
    """Every threshold, by backend and name."""
    text = files("preflight.fabric").joinpath("limits.toml").read_text(encoding="utf-8")
    return {
        backend: {name: Limit(**entry) for name, entry in entries.items()}
        for backend, entries in tomllib.loads(text).items()
    }


def limit(backend: str, name: str) -> float | None:
    """The number itself; None for a backend of which nothing is known."""
    found = limits().get(backend, {}).get(name)
    return None if found is None else found.value
