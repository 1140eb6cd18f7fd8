"""Draws the heat maps as SVG: panels of rails, and one thumbnail of the whole fabric.

The thumbnail shows each endpoint's best pair, as a bad endpoint is bad with every partner and its
partners are not: a dark dot is an endpoint, a dark block a node, a dark stripe one rail of a leaf.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.core.statistics import median
from preflight.report.fabric_grid import CUT_SHORT, by_leaf
from preflight.report.markup import (
    BROKEN,
    NO_PEERS,
    STEPS,
    Step,
    element,
    label,
    number,
    step,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from preflight.fabric.observed import Observed
    from preflight.report.fabric_grid import (
        Cell,
        Comparison,
        Endpoint,
        Grid,
        LocatedBlame,
        Panel,
        Row,
    )


_LETTER = {
    "corrupt": "C",
    "hung": "H",
    "no_connect": "N",
    "absent": "A",
    "error": "E",
    "not_run": "-",
    "measured": "?",
}
_NAMED_COLUMNS, _CHAR = 40, 6.2
_MOST_SHOWN = 99.0
_MIN_SIDE, _MAX_SIDE, _PANEL_WIDTH, _MIN_HEIGHT = 6.0, 30.0, 390.0, 12.0
_LINE, _RAIL_GAP = 14.0, 8.0
_SUMMARY, _MARGIN, _NUMBER = 126.0, 4.0, 22.0
"""Width of the rows' summaries, width without them, and least width of a cell with a number."""


class Plot(Struct, frozen=True):
    """The layout of a panel, in pixels."""

    side: float
    """Width of one cell."""
    tall: float
    """Height of a cell, enough for a name beside it."""
    gutter: float
    """Width of the node names."""
    head: float
    """Height of the column names."""
    block: float
    """Distance from one rail to the next."""
    rails: int
    rows: dict[str, float]
    """Node → top of its row."""
    leaves: tuple[tuple[str, float], ...]
    """Leaf → its line of text, above its nodes."""
    height: float

    @property
    def summary_x(self) -> float:
        """Where the summaries of the rows begin."""
        return self.gutter + self.rails * self.block

    def width(self, *, summaries: bool) -> float:
        """Width of the whole panel, with or without the rows' summaries."""
        return self.summary_x + (_SUMMARY if summaries else _MARGIN)


def plot_of(grid: Grid) -> Plot:
    """Choose sizes so that four nodes fill a panel and hundreds of columns are distinguishable."""
    columns = max(1, len(grid.columns) * len(grid.rails))
    side = max(_MIN_SIDE, min(_MAX_SIDE, _PANEL_WIDTH / columns))
    tall = max(side, _MIN_HEIGHT)
    longest = max((len(label(row.node)) for row in grid.rows), default=1)
    has_names = columns <= _NAMED_COLUMNS
    head = _LINE + (max(map(len, grid.columns), default=0) * _CHAR if has_names else 0.0) + 4
    y, leaf, rows, leaves = head, "", {}, []
    for row in grid.rows:
        if row.leaf != leaf:
            y, leaf = y + _LINE, row.leaf
            leaves.append((leaf, y - 4))
        rows[row.node] = y
        y += tall
    return Plot(
        side=side,
        tall=tall,
        gutter=longest * _CHAR * 1.1 + 24,
        head=head,
        block=len(grid.columns) * side + _RAIL_GAP,
        rails=len(grid.rails),
        rows=rows,
        leaves=tuple(leaves),
        height=y + 4,
    )


def draw(panel: Panel, grid: Grid, blames: Sequence[LocatedBlame]) -> str:
    """Draw one panel."""
    plot = plot_of(grid)
    body = [*_heads(grid, plot), *_leaves(plot)]
    summaries = [_summary(row, panel, plot, grid) for row in grid.rows]
    body += summaries
    for row in grid.rows:
        body.append(_name(row, plot, blames))
        body += [
            _cell(cell, panel, plot, _x(plot, grid, index), plot.rows[row.node])
            for index, cell in enumerate(row.cells)
            if cell is not None
        ]
    body += _frames(grid, plot, blames)
    width, title = plot.width(summaries=any(summaries)), text(panel.title)
    size = {"width": width, "height": plot.height}
    svg = element("svg", "".join(body), css="heat", role="img", aria_label=title, **size)
    return f"<figure><figcaption>{title}</figcaption>{svg}</figure>"


def _x(plot: Plot, grid: Grid, index: int) -> float:
    rail, column = divmod(index, max(1, len(grid.columns)))
    return plot.gutter + rail * plot.block + column * plot.side


def _heads(grid: Grid, plot: Plot) -> Iterator[str]:
    for block, rail in enumerate(grid.rails):
        yield element("text", f"rail {rail}", x=plot.gutter + block * plot.block, y=10)
        if len(grid.columns) * len(grid.rails) > _NAMED_COLUMNS:
            continue
        for column, name in enumerate(grid.columns):
            x = plot.gutter + block * plot.block + (column + 0.5) * plot.side + 4
            y = plot.head - 4
            turned = f"rotate(-90 {number(x)} {number(y)})"
            yield element("text", label(name), x=x, y=y, transform=turned)


def _leaves(plot: Plot) -> Iterator[str]:
    for leaf, y in plot.leaves:
        yield element("text", label(leaf or "no leaf known"), css="leaf", x=0, y=y)


def _name(row: Row, plot: Plot, blames: Sequence[LocatedBlame]) -> str:
    is_blamed = any(row.node in blame.nodes for blame in blames)
    css, mark = ("bad", "▶ ") if is_blamed else ("", "")
    words = f"{mark}{label(row.node)}<title>{text(row.node)}</title>"
    y = plot.rows[row.node] + plot.tall / 2 + 3.5
    return element("text", words, css=css, x=plot.gutter - 6, y=y, anchor="end")


def _summary(row: Row, panel: Panel, plot: Plot, grid: Grid) -> str:
    """The median ratio of the row's worst rail; "" if most of its pairs do not stand out."""
    width = len(grid.columns)
    by_rail = [
        (median([min(ratio, CUT_SHORT) for ratio in ratios]), rail)
        for place, rail in enumerate(grid.rails)
        if (ratios := _ratios(row.cells[place * width : (place + 1) * width], panel))
    ]
    ratio, rail = max(by_rail, default=(0.0, 0))
    if ratio < STEPS[0].up_to:
        return ""
    words = "no result" if ratio >= CUT_SHORT else f"{ratio:.1f} x"
    bad = sum(ratio >= STEPS[0].up_to for ratio, _ in by_rail)
    rails = f" rail {rail}" if bad == 1 else f" on {bad} rails"
    rails = rails if len(grid.rails) > 1 else ""
    y = plot.rows[row.node] + plot.tall / 2 + 3.5
    return element("text", words + rails, css="bad", x=plot.summary_x, y=y)


def _ratios(cells: Sequence[Cell | None], panel: Panel) -> list[float]:
    ratios: list[float] = []
    for cell in cells:
        if cell is None:
            continue
        comparison = panel.pick(cell)
        if cell.state != "measured":
            ratios.append(math.inf)
        elif comparison is not None and comparison.ratio is not None:
            ratios.append(comparison.ratio)
    return ratios


def _cell(cell: Cell, panel: Panel, plot: Plot, x: float, y: float) -> str:
    comparison = panel.pick(cell)
    place = {"x": x, "y": y, "width": plot.side, "height": plot.tall}
    middle = {"x": x + plot.side / 2, "y": y + plot.tall / 2 + 3.5}
    pair = f"{cell.a} {cell.b}"
    meeting = f"{pair} rail {cell.rail} round {cell.round}"
    if cell.state != "measured" or comparison is None:
        title = text(f"{meeting}: {cell.state.replace('_', ' ')} {cell.error}".rstrip())
        rectangle = element("rect", element("title", title), css=BROKEN.css, **place)
        letter = element("text", _LETTER[cell.state], css="letter", **middle, anchor="middle")
        return rectangle + letter * (plot.side > _CHAR)
    colour = step(comparison.ratio)
    # Thousands of cells equal their peers: their position shows rail and round.
    is_long = comparison.stands_out or comparison.ratio is None
    words = panel.describe(comparison)
    title = text(f"{meeting if is_long else pair}: {words}{_times(comparison)}")
    rectangle = element("rect", element("title", title), css=colour.css, **place)
    if plot.side >= _NUMBER and is_long and comparison.ratio is not None and colour is not STEPS[0]:
        ratio = f"{min(comparison.ratio, _MOST_SHOWN):.2g}"
        css = "letter" if colour.strong else "figure"
        return rectangle + element("text", ratio, css=css, **middle, anchor="middle")
    return rectangle


def _times(comparison: Comparison) -> str:
    """The ratio; "" for the thousands of cells of a large page that equal their peers."""
    ratio = comparison.ratio
    if ratio is None:
        return ""
    if ratio >= CUT_SHORT:
        return ", cut short"
    return f", {ratio:.3g} x" if comparison.stands_out else ""


def _frames(grid: Grid, plot: Plot, blames: Sequence[LocatedBlame]) -> Iterator[str]:
    """Frames around the row of a blamed node, its rail's part of it, or a bad path's cells."""
    for blame in blames:
        for node in (name for name in blame.nodes if name in plot.rows):
            block = grid.rails.index(blame.rail) if blame.rail in grid.rails else 0
            count = 1 if blame.rail in grid.rails else len(grid.rails)
            x, width = plot.gutter + block * plot.block, count * plot.block - _RAIL_GAP
            yield _frame(blame, x, plot.rows[node], width, plot.tall)
    paths = {pair: blame for blame in blames if not blame.nodes for pair in blame.pairs}
    for row in grid.rows if paths else ():
        for index, cell in enumerate(row.cells):
            framed = paths.get((cell.a, cell.b)) if cell is not None else None
            if framed is not None:
                x = _x(plot, grid, index)
                yield _frame(framed, x, plot.rows[row.node], plot.side, plot.tall)


def _frame(blame: LocatedBlame, x: float, y: float, width: float, height: float) -> str:
    css = "frame" if blame.certain else "frame maybe"
    title = element("title", text(f"{blame.component}: {blame.sentence}"))
    return element("rect", title, css=css, x=x - 1, y=y - 1, width=width + 2, height=height + 2)


ENDPOINTS = 40_000
"""With more endpoints, neighbours share a dot in the colour of the worst."""

_PER_LINE = 128
_DOT, _GAP, _GUTTER, _LEAF_GAP, _ENDPOINTS_LINE = 4.0, 6.0, 130.0, 3.0, 13.0
_ORDER = (NO_PEERS, *STEPS, BROKEN)


def thumbnail(observed: Observed, best: Mapping[Endpoint, float]) -> str:
    """Draw it as SVG; one path per colour, so that a healthy fabric of any size is small.

    `best`: the least ratio of each endpoint over its pairs.
    """
    rails = sorted({rail for _, rail in best})
    order = by_leaf(observed)
    share = math.ceil(len(order) * max(1, len(rails)) / ENDPOINTS)
    dots = [order[rail_index : rail_index + share] for rail_index in range(0, len(order), share)]
    lines = list(_lines(dots, observed.leaves))
    height = max(_ENDPOINTS_LINE, len(rails) * _DOT + _GAP)
    paths: dict[str, list[str]] = {}
    labels = []
    for index, line in enumerate(lines):
        top = index * height
        first = line[0][0][0]
        words = observed.leaves.get(first) or first
        labels.append(element("text", label(words), x=0, y=top + 9))
        for rail_index, rail in enumerate(rails):
            row = [(x, _worst(best.get((name, rail)) for name in names)) for names, x in line]
            for css, x, width in _runs(row):
                start = f"M{number(_GUTTER + x)} {number(top + rail_index * _DOT)}"
                path = f"{start}h{number(width)}v{number(_DOT)}h-{number(width)}z"
                paths.setdefault(css, []).append(path)
    width = _GUTTER + max((line[-1][1] for line in lines), default=0.0) + _DOT
    shapes = [element("path", css=css, d="".join(parts)) for css, parts in paths.items()]
    drawing = "".join([*labels, *shapes])
    return element("svg", drawing, css="thumb", width=width, height=len(lines) * height)


def _worst(ratios: Iterable[float | None]) -> Step | None:
    """The colour of the worst ratio; None if nothing was tried."""
    tried = (ratio for ratio in ratios if ratio is not None)
    colours = [BROKEN if ratio == math.inf else step(ratio) for ratio in tried]
    return max(colours, key=_ORDER.index, default=None)


def _lines(
    dots: Sequence[Sequence[str]], leaves: dict[str, str]
) -> Iterator[list[tuple[Sequence[str], float]]]:
    """Break the dots into lines, with a gap between leaves: (names, x)."""
    line: list[tuple[Sequence[str], float]] = []
    x, leaf = 0.0, None
    for names in dots:
        new_leaf = leaves.get(names[0], "")
        if line and new_leaf != leaf:
            x += _LEAF_GAP
        if len(line) == _PER_LINE:
            yield line
            line, x = [], 0.0
        line.append((names, x))
        x, leaf = x + _DOT, new_leaf
    if line:
        yield line


def _runs(row: Iterable[tuple[float, Step | None]]) -> Iterator[tuple[str, float, float]]:
    """Merge neighbours of one colour: (class, x, width)."""
    css, start, end = "", 0.0, 0.0
    for x, colour in row:
        new_css = colour.css if colour is not None else ""
        if new_css == css and x == end:
            end = x + _DOT
            continue
        if css:
            yield css, start, end - start
        css, start, end = new_css, x, x + _DOT
    if css:
        yield css, start, end - start
