"""How much of the fabric was checked, and what a run could have missed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from preflight.core.text import size, time_us
from preflight.core.thresholds import SHIPPED, Thresholds
from preflight.fabric.decoding.sensitivity import sensitivity
from preflight.report.document import MissedRow, MissedSizeRow

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from preflight.fabric.observed import Observed
    from preflight.report.document import CoverageRow


KEPT = 512


def missed_rows(
    observed: Observed | None, blamed: Collection[str] = (), limits: Thresholds = SHIPPED
) -> tuple[MissedRow, ...]:
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
    return tuple(
        msgspec.convert(one, MissedRow, from_attributes=True)
        for one in sensitivity(left, KEPT, limits)
    )


def missed_words(rows: Sequence[MissedRow]) -> str:
    """Say it of the dullest look; nothing where nothing was measured."""
    if not rows:
        return ""
    worst = rows[0]
    slower = "" if worst.slower is None else f"a loss of {worst.slower:.0%} of bandwidth"
    if worst.one_in is None or worst.every_s is None:
        if slower:
            where = f"on rail {worst.rail} of {worst.node}"
            return f"{where} {slower} would have been caught with 99 %, spikes not: {_why(worst)}"
        return (
            "too few healthy pairs to compare with: failures, floors and promises were judged, "
            "spikes and small losses were not"
        )
    loss = f", and {slower}" if slower else ""
    return (
        f"on rail {worst.rail} of {worst.node}, where the look was dullest, "
        f"a spike on 1 in {two_digits(worst.one_in):,} operations would have been caught with 99 %"
        f"{loss}; an event rarer than one in {worst.every_s:.2g} s of load would not"
        f"{_sizes(worst)}"
    )


def _why(row: MissedRow) -> str:
    """Why no rate of spikes would have been named, and what to type."""
    if row.events is None:
        return "the others had too many; run when the nodes have less to do"
    needed = f"{row.events} are needed, too many for {row.loaded_s:.2g} s of load"
    return f"{needed}; measure longer: --preflight-tier=deep or --preflight-catch-rate"


def at_size(one: MissedSizeRow) -> str:
    """What would have been caught at one size alone: "1 in 350 over 1 ms", or "no rate"."""
    if one.one_in is None:
        return "no rate"
    return f"1 in {two_digits(one.one_in):,} over {time_us(one.over_us)}"


def _sizes(worst: MissedRow) -> str:
    """The ends of the ladder: spikes that come at one size only need to be more frequent."""
    if len(worst.sizes) < 2:  # noqa: PLR2004  one size says nothing new
        return ""
    ends = (worst.sizes[0], worst.sizes[-1])
    said = "; ".join(f"{size(one.size_bytes)}: {at_size(one)}" for one in ends)
    return f" (at one size only: {said})"


def two_digits(number: float) -> int:
    """Two digits: more would be promised than is known."""
    step = int(10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1))
    return math.floor(number / step) * step


def coverage_words(seen: CoverageRow) -> str:
    """Say it in words, with how to come to the rest."""
    more = f"; {_leaf_pairs(seen)}" if seen.leaf_pairs else ""
    if seen.repairs:
        more += f"; {seen.repairs:,} for partners of nodes that are out"
    if seen.retests:
        more += f"; {seen.retests:,} measured again"
    if seen.pairs_run == seen.pairs:
        return f"{_every(seen.pairs)} this run{more}"
    this_run = f"{seen.pairs_run:,} of {seen.pairs:,} pairs this run"
    return f"{this_run}{_others(seen)}{more}"


def _every(pairs: int) -> str:
    return "the only pair" if pairs == 1 else f"all {pairs:,} pairs"


def _others(seen: CoverageRow) -> str:
    if seen.pairs_known is None and seen.rounds >= seen.rounds_total > 0:
        return " (all were planned: the others are not run, with the reason)"
    if seen.pairs_known is None:
        return " (all: --preflight-sweep=exhaustive, or night by night: --preflight-history=DIR)"
    more = seen.pairs_known > seen.pairs_run
    known = f", {seen.pairs_known:,} with earlier ones" if more else ""
    if seen.runs_left:
        runs = "run" if seen.runs_left == 1 else "runs"
        return f"{known}; all in {seen.runs_left:,} more {runs} like this"
    if seen.runs_left is None:
        return f"{known}; suspects take its only round: give --preflight-budget=SECONDS"
    lacking = seen.pairs - seen.pairs_known
    return f", all{f' but {lacking:,}' if lacking else ''} with earlier ones"


def _leaf_pairs(seen: CoverageRow) -> str:
    known = seen.leaf_pairs_known
    more = f", {known:,} with earlier runs" if known and known > seen.leaf_pairs_run else ""
    return f"leaf pairs {seen.leaf_pairs_run:,} of {seen.leaf_pairs:,}{more}"
