"""What the pairs that share no node with one reached: a slow node cannot drag its own yardstick."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.stats.leave_out import LeaveOut
from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.measure import Summary
    from preflight.fabric.samples import PairSamples

_FEW_RAILS = 2


class Peers:
    """Medians over the pairs that share no node with the one in question."""

    def __init__(self, measured: Sequence[tuple[PairSamples, Summary]]) -> None:
        self._measured = measured
        speeds: dict[int, list[tuple[float, tuple[str, str]]]] = {}
        times: dict[int, list[tuple[float, tuple[str, str]]]] = {}
        for pair, summary in measured:
            for one in summary.sizes:
                owners = (pair.a, pair.b)
                speeds.setdefault(one.size_bytes, []).append((one.busbw_gbs, owners))
                times.setdefault(one.size_bytes, []).append((one.p50_us, owners))
        self._speeds = {at: LeaveOut(values) for at, values in speeds.items()}
        self._times = {at: LeaveOut(values) for at, values in times.items()}

    def busbw(self, pair: PairSamples, size_bytes: int) -> tuple[float | None, int, str]:
        """Median GB/s, of how many, and in words of whom; other rails where no pair is left."""
        others = self._speeds[size_bytes]
        gbs = others.median((pair.a, pair.b))
        if gbs is not None:
            return gbs, others.count((pair.a, pair.b)), "peers"
        rails = [
            same.busbw_gbs
            for other, summary in self._measured
            if (other.a, other.b) == (pair.a, pair.b) and other.rail != pair.rail
            if (same := summary.size(size_bytes)) is not None
        ]
        if len(rails) < _FEW_RAILS:
            return None, 0, ""
        return median(rails), len(rails), "other rails"

    def beyond(self, pair: PairSamples, size_bytes: int) -> tuple[int, int]:
        """How many peers came to a larger size, and of how many."""
        ends = {pair.a, pair.b}
        came = [
            bool(summary.sizes and summary.sizes[-1].size_bytes > size_bytes)
            for other, summary in self._measured
            if ends.isdisjoint((other.a, other.b))
        ]
        return sum(came), len(came)

    def latency(self, pair: PairSamples, size_bytes: int) -> float | None:
        """Median of the peers' median times, us."""
        return self._times[size_bytes].median((pair.a, pair.b))
