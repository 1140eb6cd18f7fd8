"""The thresholds that judges use: shipped ones with their source, and a site's overrides.

A judge takes them as an argument and calls it, `limit("zombie_age_s")`: the override that the
inventory sets for the node, else the shipped number. The object records which overrides were used,
so that the verdict can name them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct

PACKAGE = Path(__file__).resolve().parents[1]
ROOMS = ("facts", "fabric", "burn")
"""Packages that may keep a `limits.toml`."""


class Limit(Struct, frozen=True):
    """One shipped threshold; `name` is "zombie_age_s", or "nccl.peers_ratio" for a backend's."""

    value: float
    unit: str
    kind: str
    source: str
    date: date


class Override(Struct, frozen=True):
    """A number that a site set or learned, and where it is set: "fleet.toml [group.train]"."""

    value: float
    origin: str
    learned: str = ""
    """When and from what, where `preflight learn` measured it: "2026-11-22, 8 GPUs of h1"."""

    @property
    def where(self) -> str:
        """The source of the number, as a sentence names it."""
        return f"{self.origin}, learned {self.learned}" if self.learned else self.origin


@cache
def shipped() -> dict[str, Limit]:
    """Every shipped threshold by its full name."""
    tables = (_read(PACKAGE / room / "limits.toml") for room in ROOMS)
    return {name: limit for limits in tables for name, limit in limits.items()}


@cache
def durations() -> dict[str, Limit]:
    """How long parts of a run take, by full name ("torch.import_s"): no judge uses them."""
    return _read(PACKAGE / "durations.toml")


def duration(name: str) -> float:
    """One duration, in the unit its name ends with; KeyError for an unknown name."""
    return durations()[name].value


def _read(file: Path) -> dict[str, Limit]:
    return dict(_flatten(tomllib.loads(file.read_text(encoding="utf-8")), ""))


def _flatten(tables: dict[str, dict[str, object]], prefix: str) -> Iterator[tuple[str, Limit]]:
    for name, table in tables.items():
        if "value" in table:
            yield prefix + name, Limit(**table)  # type: ignore[arg-type]  # tests hold the file to it
        else:
            yield from _flatten(table, f"{prefix}{name}.")  # type: ignore[arg-type]


class Thresholds:
    """The numbers that judge one subject: call it with a name, whose suffix is the unit."""

    def __init__(self, overrides: Mapping[str, Override] | None = None) -> None:
        self._overrides = overrides or {}
        self.used: dict[str, Override] = {}
        """The site's overrides that a judge has asked for."""

    def __call__(self, name: str) -> float:
        """The number of that name; KeyError if preflight ships none of that name."""
        shipped_value = shipped()[name].value
        override = self._overrides.get(name)
        if override is None:
            return shipped_value
        self.used[name] = override
        return override.value

    def get(self, name: str) -> float | None:
        """The number of that name; None if preflight ships none of that name."""
        return self(name) if name in shipped() else None

    def for_backend(self, backend: str) -> Callable[[str], float]:
        """Return a function from a short name to a backend's number; "" means NCCL, as stricter."""
        return lambda name: self(f"{backend or 'nccl'}.{name}")


SHIPPED: Final = Thresholds()


def describe_override(name: str, override: Override) -> str:
    """Name an override and what it replaces: "zombie_age_s 600 s by fleet.toml (shipped: 300)"."""
    shipped_limit = shipped().get(name)
    unit = f" {shipped_limit.unit}" if shipped_limit and len(shipped_limit.unit) <= 12 else ""  # noqa: PLR2004  a word
    replaced = f" (shipped: {shipped_limit.value:g})" if shipped_limit else ""
    return f"{name} {override.value:g}{unit} by {override.where}{replaced}"
