"""Draws the sweep on one self-contained page, so that the slow node is seen at once.

It is part of a run's page; `preflight blame --picture` draws it alone. It has no script, font or
address, and every name is escaped text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.core.statistics import grouped
from preflight.core.text import and_more, count, size
from preflight.core.thresholds import SHIPPED, Thresholds
from preflight.fleet.nodeset import fold
from preflight.report.fabric_grid import CELLS, LATE, best_of, cells, grid, panels
from preflight.report.fabric_histograms import ROWS, charts, standing_out, worst
from preflight.report.fabric_panels import draw, thumbnail
from preflight.report.markup import LEGEND, macros, style
from preflight.report.terminal import at_size, two_digits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.decoding.sensitivity import SensitivityRow
    from preflight.fabric.observed import Observed
    from preflight.fabric.samples import Sweep
    from preflight.report.fabric_grid import Cell, LocatedBlame

LARGEST = 2 << 20
"""Bytes of the page; rows are left out until it fits, and the page says so."""

_TEMPLATE = "fabric.html.j2"


def fabric_page(
    observed: Observed,
    found: Sequence[LocatedBlame],
    *,
    sweep: Sweep | None = None,
    origin: str = "",
) -> str:
    """Draw the whole page in at most `LARGEST` bytes; for the arguments see `fabric_section`."""

    def whole(section: str) -> str:
        page = macros(_TEMPLATE).page(style("fabric.css"), section)
        return f"<!DOCTYPE html>\n{page}\n"

    most = LARGEST - len(whole("").encode())
    section = fabric_section(
        observed, found, sweep=sweep, origin=origin, with_findings=True, most=most
    )
    return whole(section)


def fabric_section(
    observed: Observed,
    found: Sequence[LocatedBlame],
    *,
    sweep: Sweep | None = None,
    origin: str = "",
    with_findings: bool = False,
    most: int = LARGEST,
    limits: Thresholds = SHIPPED,
) -> str:
    """Draw the measurements of the fabric in at most `most` bytes.

    `found`: the blames. `sweep`: every iteration, if it was stored; else quantiles are drawn.
    `origin`: where the samples came from, in words. `with_findings`: list the blames here too.
    """
    compared = cells(observed, found, limits)
    figures, charts_left = charts(observed, found, sweep)
    best = best_of(compared)
    usual = panels(limits.of(observed.backend)("spike_us"))
    rows = worst(compared, (*usual, LATE))
    parts = macros(_TEMPLATE)
    most_cells = CELLS
    while True:
        laid = grid(observed, compared, best, found, most=most_cells)
        late = any(
            cell is not None and cell.late is not None and cell.late.stands_out
            for row in laid.rows
            for cell in row.cells
        )
        section = parts.section(
            what=_what(observed, compared, origin),
            blamed=_blamed(found),
            findings=found if with_findings else (),
            matrix=parts.matrix(
                legend=LEGEND,
                laid=laid,
                panels=[draw(panel, laid, found) for panel in (*usual, *([LATE] if late else []))],
                rows=rows,
                most_rows=ROWS,
                thumbnail=thumbnail(observed, best) if laid.cut else "",
                standing_out=standing_out(best),
            )
            if best
            else parts.nothing(),
            collapsed=not found and not rows,
            charts=figures,
            charts_left=charts_left,
            coarse=sweep is None,
        )
        if len(section.encode()) <= most or len(laid.rows) <= 1:
            return str(section)
        most_cells = most_cells * 3 // 4


def _what(observed: Observed, compared: Sequence[Cell], origin: str) -> str:
    rails = len({cell.rail for cell in compared})
    pairs = len({frozenset((cell.a, cell.b)) for cell in compared})
    leaves = len(set(observed.leaves.values()))
    words = [
        f"{count(len(observed.nodes), 'node')}",
        count(pairs, "pair"),
        count(rails, "rail"),
        observed.backend or "nothing was measured",
        f"sorted by {leaves} leaf switch{'es' * (leaves != 1)}"
        if leaves
        else "no topology known: sorted by name",
    ]
    return " · ".join([*words, origin] if origin else words)


def _blamed(blames: Sequence[LocatedBlame]) -> str:
    names = ", ".join(blame.component for blame in blames[:8])
    return f"Blamed: {names}{and_more(len(blames) - 8)}" if blames else "No node or path is blamed."


_SHARPNESS_ROWS = 12


def sharpness(rows: Sequence[SensitivityRow]) -> str:
    """A table of endpoints by sensitivity, the least tested first: what would have been caught."""
    if not rows:
        return ""
    sizes = sorted({size_row.size_bytes for row in rows for size_row in row.sizes})
    groups = grouped((_sharpness_cells(row, sizes), row) for row in rows)
    heads = ("endpoints", "any size", "seconds of load", *map(size, sizes))
    table = [(cells, _endpoints(own)) for cells, own in groups.items()]
    markup: str = macros(_TEMPLATE).sharpness(heads, table, _SHARPNESS_ROWS)
    return markup


def _sharpness_cells(row: SensitivityRow, sizes: Sequence[int]) -> tuple[str, ...]:
    by_size = {size_row.size_bytes: at_size(size_row) for size_row in row.sizes}
    rate = "no rate" if row.one_in is None else f"1 in {two_digits(row.one_in):,}"
    every = "-" if row.every_s is None else f"one in {row.every_s:.1g} s"
    return (rate, every, *(by_size.get(size_bytes, "not measured") for size_bytes in sizes))


def _endpoints(rows: Sequence[SensitivityRow]) -> str:
    """Fold the nodes of each set of rails: "n[1-8] rails 0-7"."""
    rails = grouped((row.node, row.rail) for row in rows)
    nodes = grouped((fold(map(str, sorted(own))), name) for name, own in rails.items())
    return "; ".join(f"{fold(names)} rail {own}" for own, names in nodes.items())
