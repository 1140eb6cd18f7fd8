"""Two modes and drifts in one quiet line and in rows: for eyes, no verdict hangs on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from preflight.fabric.words import size, time_us
from preflight.report.document import ShapeRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from preflight.fabric.shapes import Shape

STRONG = 1.5
"""From this ratio on the terminal says it; the rest is in the picture."""

_THREE = 3


def shape_rows(found: Iterable[Shape]) -> tuple[ShapeRow, ...]:
    """Put them as the report has them."""
    return tuple(msgspec.convert(one, ShapeRow, from_attributes=True) for one in found)


def shape_words(rows: Sequence[ShapeRow]) -> str:
    """Say it of the strongest; nothing where none is strong."""
    strong = [row for row in rows if _ratio(row) >= STRONG and not _warms_up(row)]
    if not strong:
        return ""
    worst = strong[0]
    others = len(strong) - 1
    more = f"; {others} more{_shared(strong)}" if others else ""
    return f"shown, not judged: {said(worst)} between {where(worst)}{more}"


def said(row: ShapeRow) -> str:
    """Give the numbers: "two modes at 256 KiB, 0.66 ms and 3.3 ms (34 % of operations)"."""
    at = f"at {size(row.size_bytes)}{' under load' if row.phase == 'soak' else ''}"
    if row.kind == "drift":
        return f"a drift {at}, {time_us(row.from_us)} to {time_us(row.to_us)}"
    share = f" ({row.share:.0%} of operations)" if row.share is not None else ""
    return f"two modes {at}, {time_us(row.from_us)} and {time_us(row.to_us)}{share}"


def where(row: ShapeRow) -> str:
    """Name the pair, its rail and its round."""
    return f"{row.a} and {row.b} on rail {row.rail}, round {row.round}"


def _warms_up(row: ShapeRow) -> bool:
    """A drift towards faster times: caches and clocks do that; the picture has it."""
    return row.kind == "drift" and row.to_us < row.from_us


def _ratio(row: ShapeRow) -> float:
    return max(row.to_us, row.from_us) / max(min(row.to_us, row.from_us), 1e-9)


def _shared(rows: Sequence[ShapeRow]) -> str:
    """Name the node that all of several have in common, if one has: a hint, no blame."""
    common = set.intersection(*({row.a, row.b} for row in rows))
    if len(rows) < _THREE or len(common) != 1:
        return ""
    return f", all with {common.pop()}"
