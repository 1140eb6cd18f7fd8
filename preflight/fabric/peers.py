"""What a pair is compared with: pairs without its nodes, so that no slow node is its own peer.

Of two or three nodes there is none: then its own other rails, or the fastest of the other pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.stats.leave_out import LeaveOut
from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.measure import Summary
    from preflight.fabric.samples import PairSamples

INDEPENDENT = "peers' median"
_FEW = 2


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
        """GB/s to compare with, of how many measurements, and in words which."""
        others = self._speeds[size_bytes]
        ends = (pair.a, pair.b)
        # Of two peers one may be bad itself: the better one is the yardstick.
        gbs = others.median(ends, between=1.0)
        if gbs is not None:
            return gbs, others.count(ends), INDEPENDENT
        rails: list[float] = []
        pairs: list[float] = []
        for other, summary in self._measured:
            if other is not pair and (same := summary.size(size_bytes)) is not None:
                (rails if (other.a, other.b) == ends else pairs).append(same.busbw_gbs)
        if len(rails) >= _FEW:
            return median(rails), len(rails), "other rails' median"
        # Of three nodes a slow one is in two of three pairs: their median is no yardstick.
        if len(pairs) >= _FEW:
            return max(pairs), len(pairs), "fastest other pair"
        return None, 0, ""

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
        return self._times[size_bytes].median((pair.a, pair.b), between=0.0)
