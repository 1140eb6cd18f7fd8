"""The numbers that judges use: shipped ones with their source, and those that a site set instead.

A judge takes them as an argument, `limit("zombie_age_s")`: those that the inventory sets for the
node, else the shipped ones. What is decoded of a whole sweep or burn-in goes by those in force
around it. Both keep which of a site's own were used, so that a sentence can say so.
"""

from __future__ import annotations

import tomllib
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import date


PACKAGE = Path(__file__).resolve().parents[1]
ROOMS = ("facts", "fabric", "burn")
"""Packages that may keep a `limits.toml`."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One shipped threshold; `name` is "zombie_age_s", or "nccl.peers_ratio" for a backend's."""

    value: float
    unit: str
    kind: str
    source: str
    date: date


class Told(Struct, frozen=True):
    """A number that a site wrote down or learned, and where: "fleet.toml [group.train]"."""

    value: float
    origin: str
    learned: str = ""
    """When and from what, where `preflight learn` measured it: "2026-11-22, 8 GPUs of h1"."""

    @property
    def where(self) -> str:
        """Its source in a sentence."""
        return f"{self.origin}, learned {self.learned}" if self.learned else self.origin


@dataclass(frozen=True, slots=True)
class InForce:
    """What was set for the subject under judgement, and what of it the judge has used."""

    told: Mapping[str, Told]
    used: dict[str, Told]


_IN_FORCE: ContextVar[InForce | None] = ContextVar("preflight_numbers", default=None)


@cache
def shipped() -> dict[str, Limit]:
    """Every shipped threshold by its full name."""
    found: dict[str, Limit] = {}
    for room in ROOMS:
        file = PACKAGE / room / "limits.toml"
        if file.is_file():
            found.update(_read(file))
    return found


@cache
def durations() -> dict[str, Limit]:
    """What parts of a run take, by full name ("torch.import_s"): no judge uses them."""
    return _read(PACKAGE / "durations.toml")


def duration(name: str) -> float:
    """One of them, in the unit its name ends with; KeyError for a name that is not in the table."""
    return durations()[name].value


def _read(file: Path) -> dict[str, Limit]:
    return dict(_flattened(tomllib.loads(file.read_text(encoding="utf-8")), ""))


def _flattened(tables: dict[str, dict[str, object]], above: str) -> Iterator[tuple[str, Limit]]:
    for name, table in tables.items():
        if "value" in table:
            yield above + name, Limit(**table)  # type: ignore[arg-type]  # tests hold the file to it
        else:
            yield from _flattened(table, f"{above}{name}.")  # type: ignore[arg-type]


def number(name: str) -> float | None:
    """The number in force, in the unit its name ends with; None for one that nobody ships."""
    known = shipped().get(name)
    in_force = _IN_FORCE.get()
    if known is None or in_force is None or name not in in_force.told:
        return None if known is None else known.value
    told = in_force.told[name]
    in_force.used[name] = told
    return told.value


class Thresholds:
    """The numbers that one subject is judged by; called with a name, in the unit that ends it."""

    def __init__(self, told: Mapping[str, Told] | None = None) -> None:
        self._told = told or {}
        self.used: dict[str, Told] = {}
        """Those of the site's own that were asked for."""

    def __call__(self, name: str) -> float:
        """The number of that name; KeyError for one that nobody ships."""
        shipped_value = shipped()[name].value
        told = self._told.get(name)
        if told is None:
            return shipped_value
        self.used[name] = told
        return told.value


SHIPPED: Final = Thresholds()


@contextmanager
def in_force(told: Mapping[str, Told]) -> Iterator[dict[str, Told]]:
    """Let these numbers stand in for shipped ones; yields those that get used, as they are."""
    used: dict[str, Told] = {}
    token = _IN_FORCE.set(InForce(told, used))
    try:
        yield used
    finally:
        _IN_FORCE.reset(token)


def words(name: str, told: Told) -> str:
    """Say which number stands in for which: "zombie_age_s 600, fleet.toml (shipped: 300)"."""
    instead = shipped().get(name)
    unit = f" {instead.unit}" if instead and len(instead.unit) <= 12 else ""  # noqa: PLR2004  a word
    was = f" (shipped: {instead.value:g})" if instead else ""
    return f"{name} {told.value:g}{unit} by {told.where}{was}"


def limit(backend: str, name: str) -> float | None:
    """The number in force; None for a backend of which nothing is known."""
    return number(f"{backend}.{name}")
