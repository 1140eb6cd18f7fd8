"""The numbers that judges use: shipped ones with their source, and those that a site set instead.

A judge takes them as an argument, `limit("zombie_age_s")`: those that the inventory sets for the
node, else the shipped ones. They keep which of a site's own were used, so that a sentence can say
so.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
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

    def get(self, name: str) -> float | None:
        """The same; None for one that nobody ships."""
        return self(name) if name in shipped() else None

    def of(self, backend: str) -> Callable[[str], float]:
        """Those of a backend; where nothing was measured, NCCL's, which are the stricter."""
        return lambda name: self(f"{backend or 'nccl'}.{name}")


SHIPPED: Final = Thresholds()


def words(name: str, told: Told) -> str:
    """Say which number stands in for which: "zombie_age_s 600, fleet.toml (shipped: 300)"."""
    instead = shipped().get(name)
    unit = f" {instead.unit}" if instead and len(instead.unit) <= 12 else ""  # noqa: PLR2004  a word
    was = f" (shipped: {instead.value:g})" if instead else ""
    return f"{name} {told.value:g}{unit} by {told.where}{was}"
