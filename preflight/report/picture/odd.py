"""Two modes and drifts on the page: every operation of such a series as a dot over its order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from preflight.fabric.shapes import network_us
from preflight.fabric.words import time_us
from preflight.report.picture.markup import number, text
from preflight.report.shapes import said, shape_rows, where

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight.fabric.samples import Sweep
    from preflight.fabric.shapes import Shape

DRAWN, DOTS = 8, 400
"""Series that are drawn, and operations of each."""

_WIDTH, _HEIGHT, _LEFT = 400.0, 90.0, 58.0


def odd(found: Sequence[Shape], sweep: Sweep) -> Iterator[str]:
    """Draw the strongest; nothing where no series is of that kind."""
    if not found:
        return
    yield "<h2>Two modes and drifts: shown, not judged</h2>"
    yield (
        '<p class="small">Series of one pair at one size whose times fall into two clusters, or '
        "creep one way, while those of its peers do not. Each dot is an operation: its place in "
        "the series, its time (logarithmic). Nobody is blamed for them.</p>"
    )
    raw = {(pair.a, pair.b, pair.rail, pair.round): pair for pair in sweep.pairs}
    for one, row in zip(found[:DRAWN], shape_rows(found[:DRAWN]), strict=True):
        pair = raw[one.a, one.b, one.rail, one.round]
        times = network_us(pair, (one.size_bytes, one.phase), DOTS)
        words = f"{where(row)}: {said(row)}"
        yield f"<figure>{_dots(times, words)}<figcaption>{text(words)}</figcaption></figure>"
    if len(found) > DRAWN:
        yield f"<p>{len(found) - DRAWN} more are in report.json (shapes).</p>"


def _dots(times: Sequence[float], words: str) -> str:
    low, high = math.log(max(min(times), 1e-3)), math.log(max(*times, 2e-3))
    tall = max(high - low, 0.1)

    def y(time: float) -> float:
        return 6 + (1 - (math.log(max(time, 1e-3)) - low) / tall) * (_HEIGHT - 12)

    step = _WIDTH / max(1, len(times))
    # A line of no length with round ends is a dot, and takes the fewest characters.
    path = "".join(
        f"M{number(_LEFT + at * step)} {number(y(time))}h0" for at, time in enumerate(times)
    )
    edges = "".join(
        f'<text x="{number(_LEFT - 4)}" y="{number(y(time) + 4)}" text-anchor="end">'
        f"{time_us(time)}</text>"
        for time in dict.fromkeys((min(times), max(times)))
    )
    size = f'width="{number(_LEFT + _WIDTH + 8)}" height="{number(_HEIGHT)}"'
    return (
        f'<svg class="odd" role="img" aria-label="{text(words)}" {size}>{edges}'
        f'<path class="dots" d="{path}"/></svg>'
    )
