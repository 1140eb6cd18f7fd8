"""What a run could have missed, in one sentence and in rows: clean is only as good as the look."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from preflight.fabric.decoding.missed import missed
from preflight.report.document import MissedRow

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from preflight.fabric.observed import Observed

KEPT = 512


def missed_rows(observed: Observed | None, blamed: Collection[str] = ()) -> tuple[MissedRow, ...]:
    """The dullest looks first: those that only a frequent event would have been seen in.

    `blamed`: nodes that are condemned already; what was measured with them says nothing of others.
    """
    if observed is None:
        return ()
    out = frozenset(blamed)
    left = replace(
        observed,
        nodes=tuple(name for name in observed.nodes if name not in out),
        tried=tuple(one for one in observed.tried if out.isdisjoint((one.a, one.b))),
        digests=tuple(one for one in observed.digests if out.isdisjoint((one.a, one.b))),
    )
    found = missed(left)
    ranked = sorted(found, key=lambda one: one.one_in if one.one_in is not None else 0.0)
    return tuple(MissedRow(**msgspec.structs.asdict(one)) for one in ranked[:KEPT])


def missed_words(rows: Sequence[MissedRow]) -> str:
    """Say it of the dullest look; nothing where nothing was measured."""
    if not rows:
        return ""
    worst = rows[0]
    if worst.one_in is None or worst.every_s is None:
        return (
            "too few healthy pairs to compare with: failures, floors and promises were judged, "
            "spikes and small losses were not"
        )
    slower = "" if worst.slower is None else f", and a loss of {worst.slower:.0%} of bandwidth"
    return (
        f"a spike on 1 in {_round(worst.one_in):,} operations would have been named with 99 %"
        f"{slower}; an event rarer than one in {worst.every_s:.2g} s of load, maybe not"
    )


def _round(number: float) -> int:
    """Two digits: more would be promised than is known."""
    step = int(10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1))
    return math.floor(number / step) * step
