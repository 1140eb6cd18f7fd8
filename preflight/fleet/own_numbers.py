"""Numbers that a site sets in its inventory: `[group.X.limits]` and `[group.X.baselines]`.

A name that nobody asks for would be a threshold that is silently not applied, so it is refused.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from preflight.errors import UsageError
from preflight.fleet.baselines import UNITS, highest_ceiling
from preflight.fleet.words import did_you_mean
from preflight.numbers import Told, shipped

if TYPE_CHECKING:
    from collections.abc import Iterator

SWEPT = ("gloo.", "nccl.")
"""Numbers of a sweep, which is decoded once for all nodes."""

FARTHEST = 10
"""Times the highest ceiling that is known: a later GPU may be faster, a slipped unit is more."""

_TIME_ZONES = timedelta(days=1)
_FLEET_WIDE = "one sweep judges all groups together: put it into [defaults.limits]"


class BaselineTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A baseline with its story, as `preflight learn` writes it."""

    value: float
    learned: date | None = None
    of: Annotated[str, Meta(max_length=200)] = ""


Limits = dict[str, float | dict[str, float]]
Baselines = dict[str, float | BaselineTable]


def told_limits(said: Limits | None, origin: str, *, for_all: bool) -> dict[str, Told]:
    """The limits of one table by full name; UsageError names the table and the nearest name.

    `for_all`: the table is said of all nodes, so that it may set the numbers of a sweep.
    """
    told: dict[str, Told] = {}
    known = {*shipped(), *UNITS}
    for name, value in _flat(said or {}):
        if name not in known:
            raise UsageError(f"unknown limit {name[:80]!a} in {origin}{did_you_mean(name, known)}")
        if name.startswith(SWEPT) and not for_all:
            raise UsageError(f"{name} in {origin}: {_FLEET_WIDE}")
        told[name] = Told(_sound(name, value, origin), origin)
    return told


def told_baselines(said: Baselines | None, origin: str) -> dict[str, Told]:
    """The baselines of one table by measure."""
    told: dict[str, Told] = {}
    for name, value in (said or {}).items():
        if name not in UNITS:
            hint = did_you_mean(name, UNITS)
            raise UsageError(f"unknown baseline {name[:80]!a} in {origin}{hint}")
        one = value if isinstance(value, BaselineTable) else BaselineTable(value)
        learned = ", ".join(filter(None, [str(one.learned or ""), one.of]))
        if one.learned and one.learned > datetime.now(UTC).date() + _TIME_ZONES:
            come = f"{name} in {origin} was learned {one.learned}, a day that is to come"
            raise UsageError(f"{come}: correct it")
        told[name] = Told(_sound(name, one.value, origin), origin, learned)
    return told


def _flat(said: Limits) -> Iterator[tuple[str, float]]:
    """Read `nccl.peers_ratio = 0.5` and `[...limits.nccl]` alike."""
    for name, value in said.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", number) for inner, number in value.items())
        else:
            yield name, value


def _sound(name: str, value: float, origin: str) -> float:
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"{name} in {origin} is {value}: give a number, 0 or more")
    most = highest_ceiling(name)
    if most is not None and value > FARTHEST * most:
        raise UsageError(
            f"{name} in {origin} is {value:g} {UNITS[name]}: no part that is known comes "
            f"to more than {most:g}; correct the unit or the decimal point"
        )
    return float(value)
