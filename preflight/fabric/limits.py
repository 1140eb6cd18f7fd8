"""The numbers behind the sweep's judgement, with where each comes from: an operator may ask."""

from __future__ import annotations

from preflight.core.thresholds import Limit, number, shipped

BACKENDS = ("gloo", "nccl")


def limits() -> dict[str, dict[str, Limit]]:
    """Every threshold, by backend and name."""
    return {
        backend: {
            name.removeprefix(f"{backend}."): one
            for name, one in shipped().items()
            if name.startswith(f"{backend}.")
        }
        for backend in BACKENDS
    }


def limit(backend: str, name: str) -> float | None:
    """The number in force; None for a backend of which nothing is known."""
    return number(f"{backend}.{name}")
