"""One size of one pair in a few numbers, with every iteration kept that stood out.

Statistics and blame read digests alone: those of a real sweep come from every iteration of both
ends, those of a simulated fabric of thousands of nodes are made as such.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fabric.samples import Phase
from preflight.fabric.still import Still, starts_s
from preflight.stats.quantiles import median, nearest_rank

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.fabric.samples import End, PairSamples, Timing

CUT_MEDIANS = 5.0
"""An iteration that took more than so many medians at either end stands out."""

KEPT = 256
"""Of those, the longest that one digest keeps."""


class Standout(Struct, frozen=True, array_like=True):
    """One iteration that took long at either end.

    `at_s`: when it began, seconds since 1970 by the first end's wall clock (the second's where only
    that reported). `gap`: before it, between the operations, by each end's own clock.
    """

    at_s: float
    operation: int
    first_us: float
    second_us: float
    first_gap_us: float
    second_gap_us: float
    first_stall_us: float = 0.0
    """For how long of it, and of the operation before it, that end stood still itself."""
    second_stall_us: float = 0.0

    @property
    def network_us(self) -> float:
        """The shorter of both: what began late at one end is long at the other only."""
        return min(self.first_us, self.second_us)


class Digest(Struct, frozen=True, kw_only=True):
    """One size of one pair on one rail in one round. Times are the shorter of both ends'."""

    a: str
    b: str
    rail: int
    round: int
    size_bytes: int
    phase: Phase = "ladder"
    operations: int
    """How many were timed (at both ends, where both reported)."""
    loaded_s: float
    """Their sum, at the end where it took longer: how long a rare event could have shown itself."""
    best_us: float
    p50_us: float
    p99_us: float
    p999_us: float
    most_us: float
    early_us: float = 0.0
    """Median of the first half, and of the second: they drift apart where something heats up."""
    late_us: float = 0.0
    standouts: tuple[Standout, ...] = ()
    """Every iteration over `cut_us` at either end, in time's order; the longest `KEPT` of them."""
    cut_us: float = 0.0


def digests(pair: PairSamples) -> Iterator[Digest]:
    """Condense one pair, size by size, from what both ends (or the only one) kept."""
    first, second = _by_kind(pair.first), _by_kind(pair.second)
    for kind in sorted(first.keys() | second.keys()):
        yield _digest(pair, first.get(kind), second.get(kind))


def _by_kind(end: End | None) -> dict[tuple[int, Phase], Timing]:
    timings = end.timings if end is not None else ()
    return {(timing.size_bytes, timing.phase): timing for timing in timings if timing.times_us}


def _digest(pair: PairSamples, first: Timing | None, second: Timing | None) -> Digest:
    mine, other = first or second, second or first
    assert mine is not None
    assert other is not None
    network = list(map(min, mine.times_us, other.times_us))
    ranked = sorted(network)  # once: what follows finds it in order
    typical = median(ranked)
    cut = CUT_MEDIANS * typical
    half = len(network) // 2
    return Digest(
        a=pair.a,
        b=pair.b,
        rail=pair.rail,
        round=pair.round,
        size_bytes=mine.size_bytes,
        phase=mine.phase,
        operations=len(network),
        loaded_s=max(sum(mine.times_us), sum(other.times_us)) / 1e6,
        best_us=ranked[0],
        p50_us=typical,
        p99_us=nearest_rank(ranked, 0.99),
        p999_us=nearest_rank(ranked, 0.999),
        most_us=ranked[-1],
        early_us=median(network[:half]) if half else typical,
        late_us=median(network[half:]),
        standouts=_standouts(pair, first, second, cut),
        cut_us=cut,
    )


def _standouts(
    pair: PairSamples, first: Timing | None, second: Timing | None, cut_us: float
) -> tuple[Standout, ...]:
    mine, other = first or second, second or first
    assert mine is not None
    assert other is not None
    if max(mine.times_us) <= cut_us and max(other.times_us) <= cut_us:
        return ()
    end = pair.first if first is not None else pair.second
    times_us, others_us = mine.times_us, other.times_us
    over = [
        number
        for number, both in enumerate(zip(times_us, others_us, strict=False))
        if max(both) > cut_us
    ]
    kept = nlargest(KEPT, over, key=lambda number: min(times_us[number], others_us[number]))
    began_s = list(starts_s(end.started_s if end is not None else 0.0, mine))
    still, their_still = Still(pair.first, first), Still(pair.second, second)
    return tuple(
        Standout(
            began_s[number],
            number,
            times_us[number],
            others_us[number],
            mine.gaps_us[number],
            other.gaps_us[number],
            still.us(number),
            their_still.us(number),
        )
        for number in sorted(kept)
    )
