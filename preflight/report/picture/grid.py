"""Where each pair is drawn: a row per node, sorted by leaf; a block per rail; who with whom.

Small fleets, where most pairs were tried: a column per partner, so that a bad node is a row and a
column. Large ones: a column per round, so that a bad node is a row. Every pair is in two rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fleet.nodeset import natural
from preflight.report.picture.colours import STEPS
from preflight.report.picture.ratios import Cell

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from preflight.fabric.observed import Observed
    from preflight.report.picture.accused import Accused

CELLS = 4608
"""Per panel, some 120 bytes of the page each: 64 nodes with 8 rails in 9 rounds."""

_AT_LEAST = 16
"""Rows, where there are so many nodes."""

_PARTNERS = 32
"""Nodes up to which a column can be a partner."""


Endpoint = tuple[str, int]
"""Node and rail."""


class Row(Struct, frozen=True):
    """One node and what stands in its columns; None: not tried."""

    node: str
    leaf: str
    cells: tuple[Cell | None, ...]


class Grid(Struct, frozen=True, kw_only=True):
    """What the panels draw; `rows` are those that fit, of `nodes` in all."""

    rows: tuple[Row, ...]
    rails: tuple[int, ...]
    columns: tuple[str, ...]
    """Of each rail's block: partners' names or "round 0", ..."""
    nodes: int

    @property
    def cut(self) -> bool:
        """Whether rows were left out."""
        return len(self.rows) < self.nodes


def by_leaf(observed: Observed) -> tuple[str, ...]:
    """The nodes sorted by leaf switch, then by name; those without a leaf come last."""

    def place(name: str) -> tuple[bool, list[tuple[int, str]], list[tuple[int, str]]]:
        leaf = observed.leaves.get(name, "")
        return not leaf, natural(leaf), natural(name)

    return tuple(sorted(observed.nodes, key=place))


def grid(
    observed: Observed,
    cells: Sequence[Cell],
    best: Mapping[Endpoint, float],
    found: Sequence[Accused],
    *,
    most: int = CELLS,
) -> Grid:
    """Lay out as many rows as `most` cells allow: the accused first, then the worst.

    `best`: what `best_of` found in these cells.
    """
    order = by_leaf(observed)
    rails = tuple(sorted({cell.rail for cell in cells}))
    rounds = sorted({cell.round for cell in cells})
    tried = {frozenset((cell.a, cell.b)) for cell in cells}
    possible = len(order) * (len(order) - 1) / 2
    partners = len(order) <= _PARTNERS and len(tried) * 2 >= possible
    columns = order if partners else tuple(f"round {number}" for number in rounds)
    place = {name: at for at, name in enumerate(order if partners else rounds)}
    if len(columns) * len(rails) > most:
        rails, columns = rails[:most], ("the worst",)
        place = dict.fromkeys(place, 0)
    of_rail = {rail: at * len(columns) for at, rail in enumerate(rails)}
    width = max(1, len(columns) * len(rails))
    chosen = _chosen(order, best, found, most // width)
    rows: dict[str, list[Cell | None]] = {name: [None] * width for name in order if name in chosen}
    for cell in cells:
        for own, other in ((cell.a, cell.b), (cell.b, cell.a)):
            if own in rows and cell.rail in of_rail:
                column = of_rail[cell.rail] + place[other if partners else cell.round]
                rows[own][column] = _worse(rows[own][column], cell)
    return Grid(
        rows=tuple(Row(n, observed.leaves.get(n, ""), tuple(own)) for n, own in rows.items()),
        rails=rails,
        columns=columns,
        nodes=len(order),
    )


def _worse(one: Cell | None, other: Cell) -> Cell:
    """A pair that was tried again stays as bad as it once was."""
    return other if one is None or other.worst > one.worst else one


def _chosen(
    order: Sequence[str], best: Mapping[Endpoint, float], found: Sequence[Accused], most: int
) -> Collection[str]:
    """All nodes if they fit; else the accused, then whoever looks bad, the worst first.

    A few that look fine stand beside them, or nobody could tell what fine looks like.
    """
    if len(order) <= most:
        return order
    worst: dict[str, float] = {}
    for (name, _), ratio in best.items():
        worst[name] = max(worst.get(name, 0.0), ratio)
    rest = sorted(order, key=lambda name: worst.get(name, 0.0), reverse=True)
    bad = [name for name in rest if worst.get(name, 0.0) >= STEPS[0].up_to]
    first = dict.fromkeys(
        [
            *(name for one in found for name in one.nodes),
            *(
                name
                for one in found
                if not one.nodes
                for pair in sorted(one.pairs)
                for name in pair
            ),
            *bad,
        ]
    )
    known = set(order)
    chosen = [name for name in first if name in known][: max(1, most)]
    taken = set(chosen)
    fine = [name for name in order if name not in taken]
    return taken | set(fine[: max(0, min(most, _AT_LEAST) - len(chosen))])


def best_of(cells: Iterable[Cell]) -> dict[Endpoint, float]:
    """The least ratio of each endpoint over all of its pairs: what its partners do not explain."""
    found: dict[Endpoint, float] = {}
    for cell in cells:
        worst = cell.worst
        for name in (cell.a, cell.b):
            if worst < found.get((name, cell.rail), math.inf):
                found[name, cell.rail] = worst
            else:
                found.setdefault((name, cell.rail), worst)
    return found
