"""The whole fabric on one thumbnail: every endpoint by the best of its pairs.

The best, because a bad endpoint is bad with every partner and its partners are not: a dark dot is
an endpoint, a dark block a node, a dark stripe one rail under a leaf.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from preflight.report.picture.colours import BROKEN, NO_PEERS, STEPS, step
from preflight.report.picture.grid import by_leaf
from preflight.report.picture.markup import label, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from preflight.fabric.observed import Observed
    from preflight.report.picture.colours import Step
    from preflight.report.picture.grid import Endpoint

ENDPOINTS = 40_000
"""Beyond, neighbours share a dot, and the worst of them colours it."""

_PER_LINE = 128
_DOT, _GAP, _GUTTER, _LEAF_GAP, _LINE = 4.0, 6.0, 130.0, 3.0, 13.0
_ORDER = (NO_PEERS, *STEPS, BROKEN)


def thumbnail(observed: Observed, best: Mapping[Endpoint, float]) -> str:
    """Draw it as SVG; one path per colour, so that a healthy fabric of any size is small.

    `best`: the least ratio of each endpoint over its pairs.
    """
    rails = sorted({rail for _, rail in best})
    order = by_leaf(observed)
    share = math.ceil(len(order) * max(1, len(rails)) / ENDPOINTS)
    dots = [order[at : at + share] for at in range(0, len(order), share)]
    lines = list(_lines(dots, observed.leaves))
    height = max(_LINE, len(rails) * _DOT + _GAP)
    paths: dict[str, list[str]] = {}
    labels = []
    for number_of_line, line in enumerate(lines):
        top = number_of_line * height
        first = line[0][0][0]
        words = observed.leaves.get(first) or first
        labels.append(f'<text x="0" y="{number(top + 9)}">{label(words)}</text>')
        for at, rail in enumerate(rails):
            row = [(x, _worst(best.get((name, rail)) for name in names)) for names, x in line]
            for css, x, width in _runs(row):
                y = number(top + at * _DOT)
                path = (
                    f"M{number(_GUTTER + x)} {y}h{number(width)}v{number(_DOT)}h-{number(width)}z"
                )
                paths.setdefault(css, []).append(path)
    width = _GUTTER + max((line[-1][1] for line in lines), default=0.0) + _DOT
    shapes = "".join(f'<path class="{css}" d="{"".join(d)}"/>' for css, d in paths.items())
    size = f'width="{number(width)}" height="{number(len(lines) * height)}"'
    return f'<svg class="thumb" {size}>{"".join(labels)}{shapes}</svg>'


def _worst(ratios: Iterable[float | None]) -> Step | None:
    """None where nothing was tried."""
    found = [BROKEN if ratio == math.inf else step(ratio) for ratio in ratios if ratio is not None]
    return max(found, key=_ORDER.index, default=None)


def _lines(
    dots: Sequence[Sequence[str]], leaves: dict[str, str]
) -> Iterator[list[tuple[Sequence[str], float]]]:
    """Break the dots into lines, with a gap between leaves: (names, x)."""
    line: list[tuple[Sequence[str], float]] = []
    x, leaf = 0.0, None
    for names in dots:
        own = leaves.get(names[0], "")
        if line and own != leaf:
            x += _LEAF_GAP
        if len(line) == _PER_LINE:
            yield line
            line, x = [], 0.0
        line.append((names, x))
        x, leaf = x + _DOT, own
    if line:
        yield line


def _runs(row: Iterable[tuple[float, Step | None]]) -> Iterator[tuple[str, float, float]]:
    """Merge neighbours of one colour: (class, x, width)."""
    css, start, end = "", 0.0, 0.0
    for x, colour in row:
        own = colour.css if colour is not None else ""
        if own == css and x == end:
            end = x + _DOT
            continue
        if css:
            yield css, start, end - start
        css, start, end = own, x, x + _DOT
    if css:
        yield css, start, end - start
