"""What a run could have missed, in one sentence and in rows: clean is only as good as the look."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from preflight.fabric.decoding.missed import missed
from preflight.report.document import MissedRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.observed import Observed

KEPT = 512


def missed_rows(observed: Observed | None) -> tuple[MissedRow, ...]:
    """The dullest looks first: those that only a frequent event would have been seen in."""
    found = missed(observed) if observed is not None else ()
    ranked = sorted(found, key=lambda one: one.one_in if one.one_in is not None else 0.0)
    return tuple(MissedRow(**msgspec.structs.asdict(one)) for one in ranked[:KEPT])


def missed_words(rows: Sequence[MissedRow]) -> str:
    """Say it of the dullest look; nothing where nothing was measured."""
    if not rows:
        return ""
    worst = rows[0]
    if worst.one_in is None or worst.every_s is None:
        return "no peers to compare with: only floors, promises and failures were judged"
    slower = "" if worst.slower is None else f", and a loss of {worst.slower:.0%} of bandwidth"
    return (
        f"a spike on 1 in {_round(worst.one_in):,} operations would have been named with 99 %"
        f"{slower}; an event rarer than one in {worst.every_s:.2g} s of load, maybe not"
    )


def _round(number: float) -> int:
    """Two digits: more would be promised than is known."""
    step = int(10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1))
    return math.floor(number / step) * step
