"""How long the operations of the blamed took beside those of their peers: shares per bin.

A mean, or a median, hides what breaks a job: one operation in a thousand that takes 10 ms.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fabric.shapes import network_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preflight.fabric.digest import Digest
    from preflight.fabric.samples import PairSamples, Phase

PER_DECADE = 40
Kind = tuple[int, "Phase"]
"""Size in bytes and phase of the measurement."""


class Spread(Struct, frozen=True):
    """Shares of operations by time: bin → share; bin k is from 10^(k/40) us on, 6 % wide."""

    shares: dict[int, float]
    operations: int
    longest_us: float
    pairs: int


def bin_of(time_us: float) -> int:
    """The bin of one time; what took under 0.1 us took 0.1."""
    return math.floor(math.log10(max(time_us, 0.1)) * PER_DECADE)


def of_samples(pairs: Iterable[PairSamples], kind: Kind) -> Spread | None:
    """Count every operation that both ends timed (the shorter counts); None if there is none."""
    seen: Counter[float] = Counter()  # of many operations few times differ: they are rounded
    number = 0
    for pair in pairs:
        times = network_us(pair, kind)
        number += bool(times)
        seen.update(times)
    operations = seen.total()
    if not operations:
        return None
    counts: Counter[int] = Counter()
    for time_us, many in seen.items():
        counts[bin_of(time_us)] += many
    shares = {at: count / operations for at, count in counts.items()}
    return Spread(shares, operations, max(seen), number)


def kind_of(digest: Digest) -> Kind:
    """Its size and phase."""
    return digest.size_bytes, digest.phase


def of_digests(digests: Iterable[Digest]) -> Spread | None:
    """The same from quantiles: what lies between two of them is spread evenly there."""
    weights: dict[int, float] = {}
    operations, longest, number = 0, 0.0, 0
    for one in digests:
        for at, weight in _spread(one).items():
            weights[at] = weights.get(at, 0.0) + weight * one.operations
        number += 1
        operations += one.operations
        longest = max(longest, one.most_us)
    if not operations:
        return None
    shares = {at: weight / operations for at, weight in weights.items()}
    return Spread(shares, operations, longest, number)


def _spread(one: Digest) -> Mapping[int, float]:
    edges = (one.best_us, one.p50_us, one.p99_us, one.p999_us, one.most_us)
    weights: dict[int, float] = {}
    for low, high, share in zip(edges, edges[1:], (0.5, 0.49, 0.009, 0.001), strict=False):
        bins = range(bin_of(low), max(bin_of(low), bin_of(high)) + 1)
        for at in bins:
            weights[at] = weights.get(at, 0.0) + share / len(bins)
    return weights
