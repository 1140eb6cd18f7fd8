"""All digests of a fabric, sorted by size in one pass: what takes time is done once for all models.

A sweep of 4,096 nodes with 8 rails has 786,432 digests, and each of them is looked at by several
models. So a meeting (one pair on one rail in one round) is a row number, and a column has what was
measured of one size; nothing is made per digest.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from preflight.fabric.decoding.parts import Place

if TYPE_CHECKING:
    from preflight.fabric.digest import Digest
    from preflight.fabric.observed import Observed
    from preflight.fabric.samples import Phase

    Kind = tuple[int, Phase]


class Column(NamedTuple):
    """The digests of one size and phase, and the row of each."""

    rows: list[int]
    digests: list[Digest]


class Meetings(NamedTuple):
    """Who met on which rail, in order of first appearance, and what was measured then."""

    places: list[Place]
    together: list[list[int]]
    """The rows of one pair in one round: its rails."""
    columns: dict[Kind, Column]


def meetings(observed: Observed) -> Meetings:
    """Those that were measured to their end."""
    out = {(one.a, one.b, one.rail, one.round) for one in observed.tried if one.state != "measured"}
    rows: dict[tuple[str, str, int, int], int] = {}
    columns: dict[Kind, Column] = defaultdict(lambda: Column([], []))
    for digest in observed.digests:
        met = digest.a, digest.b, digest.rail, digest.round
        if met in out or not digest.operations:
            continue
        column = columns[digest.size_bytes, digest.phase]
        column.rows.append(rows.setdefault(met, len(rows)))
        column.digests.append(digest)
    together: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for (a, b, _, number), row in rows.items():
        together[a, b, number].append(row)
    places = [Place(a, b, rail) for a, b, rail, _ in rows]
    return Meetings(places, list(together.values()), columns)
