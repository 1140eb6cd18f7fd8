"""What a site knows and accepts for a while: `[[waive]]`; and checks it switched off.

A waiver without an end outlives its reason: each has a date, and is shown while it is there.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from preflight.core.text import did_you_mean
from preflight.errors import UsageError
from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

LONGEST = timedelta(days=366)
"""Further away nobody would look at it again."""

MOST = 1000

NEVER = ("burn.integrity",)
"""Checks of nothing but whether data come back right: nobody may waive them."""

_WAY_IN = "reach."


_SHORTEST_REASON = 3


class WaiveTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[waive]]` as written."""

    check: Annotated[str, Meta(min_length=1, max_length=80)]
    nodes: Annotated[str, Meta(min_length=1)]
    until: date
    reason: Annotated[str, Meta(max_length=200)]


class CheckTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[checks."gpu.ecc"]`: whether nodes are judged by it at all."""

    enabled: bool = True


class Waiver(Struct, frozen=True, kw_only=True):
    """A failure of one check that is known on these nodes, and accepted until the end of a day."""

    check: str
    nodes: tuple[str, ...]
    until: date
    reason: str
    origin: str

    def expired(self, today: date) -> bool:
        """Whether it has no effect any more."""
        return today > self.until

    @property
    def words(self) -> str:
        """As in "gpu.count on h2 until 2026-12-01: one is away for repair"."""
        return f"{self.check} on {fold(self.nodes)} until {self.until}: {self.reason}"


def today() -> date:
    """The day by which waivers end: UTC, wherever the controller stands."""
    return datetime.now(UTC).date()


def read_waivers(
    tables: Sequence[WaiveTable],
    expand: Callable[[str], Sequence[str]],
    names: Collection[str],
    origin: str,
) -> tuple[Waiver, ...]:
    """Read all of a file; UsageError for one that could hide what must not be hidden.

    `names`: the file's nodes, where it names any; a stranger among a waiver's is a mistake.
    """
    if len(tables) > MOST:
        raise UsageError(f"has {len(tables)} tables [[waive]]: keep at most {MOST}")
    return tuple(_read(one, expand, names, origin) for one in tables)


def _read(
    one: WaiveTable,
    expand: Callable[[str], Sequence[str]],
    names: Collection[str],
    origin: str,
) -> Waiver:
    where = f"[[waive]] of {one.check!a}"
    refuse_hiding(one.check, where)
    if len(one.reason.strip()) < _SHORTEST_REASON:
        raise UsageError(f"{where}: the reason {one.reason!a} says nothing: write why")
    if one.until - today() > LONGEST:
        raise UsageError(f"{where}: until {one.until} is over a year away: write a nearer day")
    nodes = tuple(expand(one.nodes))
    strangers = [name for name in nodes if names and name not in names]
    if strangers:
        hint = did_you_mean(strangers[0], names)
        raise UsageError(f"{where}: {fold(strangers)} is not of this inventory{hint}")
    return Waiver(
        check=one.check, nodes=nodes, until=one.until, reason=one.reason.strip(), origin=origin
    )


def refuse_hiding(check: str, where: str) -> None:
    """Refuse a waiver or a switch with which a node that nobody saw would look ready."""
    if check.startswith(_WAY_IN):
        raise UsageError(
            f"{where}: a node that cannot be reached cannot be judged; leave it out with "
            "--preflight-exclude"
        )
    if check in NEVER and where.startswith("[[waive]]"):
        raise UsageError(f"{where}: corrupted data are never waived; remove it")


def refuse_unknown(ids: Iterable[tuple[str, str]], known: Collection[str]) -> None:
    """Refuse an id of (id, where it is written) that no check has, with the nearest one."""
    for check, where in ids:
        if check not in known:
            hint = did_you_mean(check, known) or "; see: preflight checks"
            raise UsageError(f"{where}: there is no check {check[:80]!a}{hint}")
