"""All digests of a fabric, read once: what each model needs of them, sorted by size.

A sweep of 4,096 nodes with 8 rails has 786,432 digests. So a meeting (one pair on one rail in one
round) is a row number, and whatever is wanted of a digest is taken while it is at hand.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from preflight.fabric.decoding.parts import Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from preflight.fabric.digest import Digest
    from preflight.fabric.observed import Observed
    from preflight.fabric.samples import Phase

    Kind = tuple[int, Phase]


class Column(NamedTuple):
    """Times of one size and phase, and the row of each."""

    rows: list[int]
    p50_us: list[float]
    best_us: list[float]


class Meetings(NamedTuple):
    """Who met on which rail, in order of first appearance, and what was measured then."""

    places: list[Place]
    rounds: list[int]
    operations: list[int]
    """Of all sizes together, and so are their seconds."""
    loaded_s: list[float]
    together: list[list[int]]
    """The rows of one pair in one round: its rails."""
    columns: dict[Kind, Column]
    standing_out: list[tuple[int, Digest]]
    """Digests in which any operation did, with the row of each."""

    def only(self, *, again: bool, border: int) -> Meetings:
        """The same, met together only from round `border` on (`again`), or only before."""
        rounds = self.rounds
        together = [rows for rows in self.together if (rounds[rows[0]] >= border) == again]
        return self._replace(together=together)


def meetings(observed: Observed) -> Meetings:
    """Sort them in one pass."""
    rows: dict[tuple[str, str, int, int], int] = {}
    operations: list[int] = []
    loaded_s: list[float] = []
    columns: dict[Kind, Column] = defaultdict(lambda: Column([], [], []))
    standing_out: list[tuple[int, Digest]] = []
    for digest in usable(observed):
        met = digest.a, digest.b, digest.rail, digest.round
        row = rows.get(met)
        if row is None:
            row = rows[met] = len(rows)
            operations.append(0)
            loaded_s.append(0.0)
        operations[row] += digest.operations
        loaded_s[row] += digest.loaded_s
        column = columns[digest.size_bytes, digest.phase]
        column.rows.append(row)
        column.p50_us.append(digest.p50_us)
        column.best_us.append(digest.best_us)
        if digest.standouts:
            standing_out.append((row, digest))
    places = [Place(a, b, rail) for a, b, rail, _ in rows]
    rounds = [number for _, _, _, number in rows]
    return Meetings(places, rounds, operations, loaded_s, _together(rows), columns, standing_out)


def usable(observed: Observed) -> Iterator[Digest]:
    """Those of pairs that were measured to their end."""
    out = {(one.a, one.b, one.rail, one.round) for one in observed.tried if one.state != "measured"}
    for one in observed.digests:
        if one.operations and not (out and (one.a, one.b, one.rail, one.round) in out):
            yield one


def _together(rows: Mapping[tuple[str, str, int, int], int]) -> list[list[int]]:
    together: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for (a, b, _, number), row in rows.items():
        together[a, b, number].append(row)
    return list(together.values())
