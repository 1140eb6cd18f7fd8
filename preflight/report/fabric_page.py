"""The sweep on one page that opens anywhere, so that the slow node is seen at once.

Part of a run's page, and by itself what `preflight blame --picture` draws: no script, no font, no
address. Whatever nodes or files call themselves is text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.report.picture.grid import CELLS, LATE, best_of, cells, grid, panels
from preflight.report.picture.histograms import charts, sharpness, standing_out, worst
from preflight.report.picture.panels import draw, thumbnail
from preflight.report.picture.style import LEGEND, style, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.fabric.observed import Observed
    from preflight.fabric.samples import Sweep
    from preflight.report.document import MissedRow
    from preflight.report.picture.grid import Accused, Cell, Endpoint, Grid

LARGEST = 2 << 20
"""Bytes of the page; rows are left out, and it says so, until it fits."""

_FINDINGS = 40
"""Beyond so many findings the page counts the rest."""


def fabric_page(
    observed: Observed,
    found: Sequence[Accused],
    *,
    sweep: Sweep | None = None,
    origin: str = "",
    missed: Sequence[MissedRow] = (),
) -> str:
    """Draw the whole page, at most `LARGEST` bytes of it; the rest is as of `fabric_section`."""
    head = "".join(
        (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>',
            '<meta name="viewport" content="width=device-width"/>',
            "<title>preflight: the fabric</title>",
            f"<style>{style()}</style></head><body>",
            "<h1>The fabric</h1>",
        )
    )
    tail = "".join((*sharpness(missed), "</body></html>\n"))
    section = fabric_section(
        observed,
        found,
        sweep=sweep,
        origin=origin,
        most=LARGEST - len((head + tail).encode()),
    )
    return head + section + tail


def fabric_section(
    observed: Observed,
    found: Sequence[Accused],
    *,
    sweep: Sweep | None = None,
    origin: str = "",
    told: bool = False,
    most: int = LARGEST,
) -> str:
    """Draw all that is seen of the fabric, in at most so many bytes.

    `found`: what is blamed. `sweep`: every iteration, where it was kept; else quantiles are drawn.
    `origin`: where the samples came from, in words. `told`: what is blamed stands elsewhere.
    """
    compared = cells(observed, found)
    head = "".join(
        (
            f'<p class="small">{text(_what(observed, compared, origin))}</p>',
            *(_blamed(found) if told else _findings(found)),
        )
    )
    tail = "".join(charts(observed, found, sweep))
    best = best_of(compared)
    table = "".join(worst(compared, (*panels(observed.backend), LATE)))
    rows = CELLS
    while True:
        laid = grid(observed, compared, best, found, most=rows)
        section = "".join((head, *_matrix(observed, best, found, laid, table), tail))
        if len(section.encode()) <= most or len(laid.rows) <= 1:
            return section
        rows = rows * 3 // 4


def _what(observed: Observed, compared: Sequence[Cell], origin: str) -> str:
    rails = len({cell.rail for cell in compared})
    pairs = len({frozenset((cell.a, cell.b)) for cell in compared})
    leaves = len(set(observed.leaves.values()))
    words = [
        f"{len(observed.nodes)} nodes",
        f"{pairs} pairs",
        f"{rails} rail{'s' * (rails != 1)}",
        observed.backend or "nothing was measured",
        f"sorted by {leaves} leaf switches" if leaves else "no topology known: sorted by name",
    ]
    return " · ".join([*words, origin] if origin else words)


def _blamed(found: Sequence[Accused]) -> Iterator[str]:
    names = ", ".join(one.component for one in found[:8])
    more = f" and {len(found) - 8} more" if len(found) > 8 else ""  # noqa: PLR2004  one line
    said = f"Blamed: {names}{more}" if found else "Nobody is blamed."
    yield f'<p class="verdict">{text(said)}</p>'


def _findings(found: Sequence[Accused]) -> Iterator[str]:
    yield from _blamed(found)
    for one in found[:_FINDINGS]:
        yield f'<div class="finding"><b>{text(one.component)}</b><p>{text(one.sentence)}</p>'
        yield f"<p>do: {text(one.advice)}</p></div>" if one.advice else "</div>"
    if len(found) > _FINDINGS:
        yield f"<p>{len(found) - _FINDINGS} more findings are in report.json.</p>"


def _matrix(
    observed: Observed,
    best: Mapping[Endpoint, float],
    found: Sequence[Accused],
    laid: Grid,
    table: str,
) -> Iterator[str]:
    if not best:
        yield "<p>No pair was tried: there is nothing to draw.</p>"
        return
    yield "<h2>Every pair against its peers</h2>"
    yield f"<p>{_LEGEND}</p>"
    yield (
        "<details><summary>How to read it</summary>"
        '<p class="small">A row per node; each pair is in the rows of both of its nodes. A row '
        "that stands out is a node, a single cell (twice) the path between two; at its end a row "
        "says how many times its peers' time most of its pairs take. Frame: blamed; dashed: one of "
        "several that may be. Point at a cell to read it, or open the table.</p>"
    )
    yield (
        '<p class="small">Colours go by the rules that condemn: bandwidth by the fastest operation '
        "of each size from 64 KiB on, latency by the median below that, times being the shorter of "
        "both ends'; a spike is longer than 20 medians of its size and than the time above its "
        "map, and what lies within 50 ms is one. What healthy pairs scatter by anyway has no "
        "colour where nobody is blamed.</p></details>"
    )
    if laid.cut:
        yield (
            f"<p><b>{len(laid.rows)} of {laid.nodes} nodes have a row</b>: those in findings, "
            "those that look bad, and a few beside them. All are in the thumbnail below.</p>"
        )
    late = any(
        cell is not None and cell.late is not None and cell.late.stands_out
        for row in laid.rows
        for cell in row.cells
    )
    yield from (
        draw(panel, laid, found) for panel in (*panels(observed.backend), *([LATE] if late else []))
    )
    yield table
    if laid.cut:
        yield "<h2>Every endpoint</h2>"
        yield (
            '<p class="small">A column per node, a line per rail, coloured by the best of its '
            "pairs: a bad endpoint is bad with every partner, its partners are not.</p>"
        )
        yield f'<div class="wide">{thumbnail(observed, best)}</div>'
        yield f"<p>{text(standing_out(best))}</p>"


_LEGEND = "".join(
    f'<span class="key"><svg width="14" height="14"><rect class="{one.css}" width="14" height="14" '
    f'stroke="#999"/></svg>{text(one.words)}</span>'
    for one in LEGEND
)
