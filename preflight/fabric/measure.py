"""What a pair's samples come to: bus bandwidth as nccl-tests counts it, and latency percentiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fabric.samples import PairState
from preflight.stats.quantiles import median, nearest_rank

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from preflight.fabric.samples import End, PairSamples, Timing

LATENCY_BELOW = 64 << 10
"""Below this size, bytes, the time is all latency."""

WORST_FIRST: tuple[PairState, ...] = (
    "corrupt",
    "hung",
    "no_connect",
    "error",
    "not_run",
    "absent",
    "measured",
)


class SizeSummary(Struct, frozen=True, kw_only=True):
    """One size of one pair. Times are those of the network: the shorter of both ends'.

    An all-reduce that one end begins late looks long at the other end only.
    """

    size_bytes: int
    iterations: int
    busbw_gbs: float
    """Of the median iteration."""
    best_gbs: float
    """Of the fastest one."""
    p50_us: float
    p99_us: float
    max_us: float
    ends_p99_us: tuple[float | None, float | None]
    """p99 as each end saw it, late arrivals of the other included."""


class Summary(Struct, frozen=True):
    """One pair on one rail in one round."""

    state: PairState
    sizes: tuple[SizeSummary, ...]
    error: str

    def size(self, size_bytes: int) -> SizeSummary | None:
        """The summary of that size; None if it was not measured."""
        return next((one for one in self.sizes if one.size_bytes == size_bytes), None)


def wire_from(backend: str) -> int:
    """From which size on, bytes, the wire decides, so that bandwidth is judged.

    With NCCL 1 MiB takes 23 us at 46 GB/s, as long as its latency; 16 MiB takes 365 us.
    """
    return 16 << 20 if backend == "nccl" else LATENCY_BELOW


def busbw_gbs(size_bytes: int, seconds: float, ranks: int = 2) -> float:
    """Bus bandwidth of an all-reduce in GB/s (1e9): S/t * 2(n-1)/n, as nccl-tests defines it.

    Source: NVIDIA/nccl-tests doc/PERFORMANCE.md. For two ranks the factor is 1.
    """
    return size_bytes / max(seconds, 1e-9) / 1e9 * 2 * (ranks - 1) / ranks


def summarise(pair: PairSamples) -> Summary:
    """Join both ends' accounts."""
    ends = [end for end in (pair.first, pair.second) if end is not None]
    way = bypass(pair)
    error = f"its data went over {way}, which measures no NIC" if way else _said(ends)
    return Summary(joint_state(pair), _sizes(pair.first, pair.second), error)


def bypass(pair: PairSamples) -> str:
    """The way past the NICs that NCCL says it took between two nodes: "P2P", "SHM"; else nothing.

    So it does within an NVLink domain, and where it takes both nodes for one host.
    """
    ends = [end for end in (pair.first, pair.second) if end is not None]
    if pair.backend != "nccl" or any(end.state != "measured" for end in ends):
        return ""
    ways = dict.fromkeys(way for end in ends for way in end.net.split(" + ") if way)
    return " + ".join(way for way in ways if not way.startswith("NET/"))


def joint_state(pair: PairSamples) -> PairState:
    """The worse of both ends' states; an end that never reported counts as absent.

    What went past the NICs was no measurement of the pair.
    """
    if bypass(pair):
        return "not_run"
    ends = [end for end in (pair.first, pair.second) if end is not None]
    states: list[PairState] = [end.state for end in ends]
    missing: list[PairState] = ["absent"] * (2 - len(ends))
    return min(states + missing, key=WORST_FIRST.index)


def lost_accounts(pair: PairSamples, silent: Collection[str]) -> tuple[str, ...]:
    """Whose account of a pair got lost, though nobody saw it fail: such a pair was not judged.

    Not of nodes that fell silent, nor where the other end says that something went wrong.
    """
    ends = {pair.a: pair.first, pair.b: pair.second}
    lost = tuple(name for name, end in ends.items() if end is None)
    fine = all(end.state == "measured" for end in ends.values() if end is not None)
    return lost if fine and set(lost).isdisjoint(silent) else ()


def lost_words(lost: Sequence[str]) -> str:
    """What is to be said of them."""
    own = f"{lost[0]}'s account of it was" if len(lost) == 1 else "both ends' accounts of it were"
    return f"{own} lost, which is no reason against anybody: run again"


def _said(ends: Sequence[End]) -> str:
    """What the ends said went wrong, by whom; once, where both say the same."""
    errors = {end.node: end.error for end in ends if end.error}
    if len(errors) > 1 and len(set(errors.values())) == 1:
        return next(iter(errors.values()))
    return "; ".join(f"{node}: {error}" for node, error in errors.items())


def _sizes(first: End | None, second: End | None) -> tuple[SizeSummary, ...]:
    left, right = _ladder(first), _ladder(second)
    return tuple(
        _size(size_bytes, left.get(size_bytes), right.get(size_bytes))
        for size_bytes in sorted(left.keys() | right.keys())
    )


def _ladder(end: End | None) -> dict[int, Timing]:
    timings = end.timings if end is not None else ()
    return {timing.size_bytes: timing for timing in timings if timing.phase == "ladder"}


def _size(size_bytes: int, first: Timing | None, second: Timing | None) -> SizeSummary:
    ends = [timing.times_us for timing in (first, second) if timing is not None]
    network_us = [min(times) for times in zip(*ends, strict=False)]
    typical_us = median(network_us)
    return SizeSummary(
        size_bytes=size_bytes,
        iterations=len(network_us),
        busbw_gbs=round(busbw_gbs(size_bytes, typical_us / 1e6), 6),
        best_gbs=round(busbw_gbs(size_bytes, min(network_us) / 1e6), 6),
        p50_us=typical_us,
        p99_us=nearest_rank(network_us, 0.99),
        max_us=max(network_us),
        ends_p99_us=(_p99(first), _p99(second)),
    )


def _p99(timing: Timing | None) -> float | None:
    times: Sequence[float] = timing.times_us if timing else ()
    return nearest_rank(times, 0.99) if times else None
