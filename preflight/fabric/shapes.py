"""What a median hides in a pair's times: two modes, or a drift. Shown to eyes, never judged.

Only what its peers do not show at the same size: on shared cores every second pair waits for its
time slice now and then, and clocks of a whole fleet warm up together.

Nobody is condemned for it; a drift shows in the second half of a job what a median hides.

Nobody is condemned for it: two routes, two clock rates, or two ways through a switch look like it.
"""

from __future__ import annotations

import math
from itertools import accumulate, combinations, pairwise
from operator import mul
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.core.statistics import median, nearest_rank
from preflight.fabric.decoding.parts import number
from preflight.fabric.samples import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.fabric.observed import Digest, Observed
    from preflight.fabric.samples import PairSamples, Sweep


BLOCKS, LEAST = 12, 96
"""The series is cut into so many blocks; of fewer values nothing is said."""

TAU = 0.8
"""Kendall's tau of block medians from which they go one way: by chance 2 in 10,000 of 12 do."""

CLEAR = 4.0
"""So many times the scatter of the blocks about the trend must the whole drift be."""


class Drift(Struct, frozen=True, kw_only=True):
    """The trend at its start and at its end, by Theil and Sen's line through the block medians."""

    start: float
    end: float
    tau: float


def drift(values: Sequence[float]) -> Drift | None:
    """Find a steady change of positive values over their order; None where there is none.

    Mann and Kendall's test on medians of `BLOCKS` blocks (Mann 1945; Kendall 1948), and the
    Theil-Sen slope (Sen 1968) of their logarithms: single spikes, and values that depend on the
    one before, move neither.
    """
    number = len(values)
    if number < LEAST or min(values) <= 0:
        return None
    edges = [number * at // BLOCKS for at in range(BLOCKS + 1)]
    logs = [math.log(median(values[a:b])) for a, b in pairwise(edges)]
    steps = [(j - i, logs[j] - logs[i]) for i, j in combinations(range(BLOCKS), 2)]
    tau = sum((up > 0) - (up < 0) for _, up in steps) / len(steps)
    if abs(tau) < TAU:
        return None
    slope = median([up / apart for apart, up in steps])
    base = median([log - slope * at for at, log in enumerate(logs)])
    scatter = median([abs(log - base - slope * at) for at, log in enumerate(logs)])
    if abs(slope) * (BLOCKS - 1) < CLEAR * scatter:
        return None
    return Drift(start=math.exp(base), end=math.exp(base + slope * (BLOCKS - 1)), tau=tau)


MODES_LEAST, SHARE = 100, 0.1
"""Values below which nothing is said, and the least share of them in either mode."""

APART = 6.0
"""Ashman's D from which two modes are called that: halves of a normal distribution have 2.6, of a
uniform one 3.5; a mixture of two normal ones that just touch (D = 2 by its own means) 3.2."""

VALLEY = 0.1
"""Between two modes is at most so much of what the lesser one holds."""


class Modes(Struct, frozen=True, kw_only=True):
    """Two clusters of values, by the medians of each."""

    low: float
    high: float
    share_high: float
    apart: float
    """Ashman's D: the distance of their means in units of their scatter."""


def two_modes(values: Sequence[float]) -> Modes | None:
    """Split positive values in two where their logarithms vary least within; None for one mode.

    The split is the optimum of 2-means in one dimension (Fisher 1958; Otsu 1979), among those that
    leave `SHARE` on either side. It counts as two modes if Ashman's D = sqrt(2) |m1 - m2| /
    sqrt(s1^2 + s2^2) (Ashman, Bird and Zepf 1994, AJ 108:2348) is over `APART`, and if the middle
    third between both medians is a valley.
    """
    ranked = sorted([math.log(value) for value in values if value > 0])
    if len(ranked) < MODES_LEAST or ranked[0] == ranked[-1]:
        return None
    at = _split(ranked)
    low, high = ranked[:at], ranked[at:]
    apart = _ashman(low, high)
    if apart < APART or not _valley(low, high):
        return None
    return Modes(
        low=math.exp(median(low)),
        high=math.exp(median(high)),
        share_high=len(high) / len(ranked),
        apart=apart,
    )


def _split(ranked: Sequence[float]) -> int:
    """Where the variance between both sides is largest, with `SHARE` on either side."""
    number, total = len(ranked), math.fsum(ranked)
    least = max(1, math.ceil(SHARE * number))
    between = [
        (left * number - total * at) ** 2 / (at * (number - at))
        for at, left in enumerate(accumulate(ranked[: number - least]), 1)
    ][least - 1 :]
    return least + between.index(max(between))


def _ashman(low: Sequence[float], high: Sequence[float]) -> float:
    (one, one_spread), (other, other_spread) = _moments(low), _moments(high)
    # Values that are whole microseconds must not make a mode infinitely narrow.
    scatter = max(math.hypot(one_spread, other_spread), 1e-3)
    return math.sqrt(2) * (other - one) / scatter


def _moments(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    away = [value - mean for value in values]
    return mean, math.sqrt(math.fsum(map(mul, away, away)) / len(values))


def _valley(low: Sequence[float], high: Sequence[float]) -> bool:
    one, other = median(low), median(high)
    third = (other - one) / 3
    between = sum(one + third < value < other - third for value in (*low, *high))
    return between <= VALLEY * min(len(low), len(high))


if TYPE_CHECKING:
    Kind = tuple[int, Phase]
    Turn = tuple[str, str, int, int]

PEERS, LEAST_PEERS = 32, 3
"""Pairs that stand for the peers, and how few are none."""

MOST = 256
"""Shapes that are kept, the strongest first."""

LOOKED_AT = 4096
"""Series of one size that are looked at for two modes: those whose tail is farthest off."""

_ENOUGH = 256  # operations that tell two modes, from all over a series
_POOL = 128  # series from which each one's peers are taken

_MORE = 3.0
"""So many times the share that most peers have on that side of the valley."""
_HALF = 0.4  # of a steady drift the medians of both halves show half, less some noise


class Shape(Struct, frozen=True, kw_only=True):
    """One series, a pair on a rail in a round at a size, that no single number describes."""

    kind: Literal["two_modes", "drift"]
    a: str
    b: str
    rail: int
    round: int
    size_bytes: int
    phase: Phase
    operations: int
    from_us: float
    """The faster mode's median; the trend at the first operation."""
    to_us: float
    """The slower mode's median; the trend at the last one."""
    share: float | None
    """Of operations in the slower mode."""
    strength: float
    """Ashman's D of two modes; Kendall's tau of a drift."""

    @property
    def ratio(self) -> float:
        """How far both are from each other, at least 1."""
        return math.exp(abs(math.log(self.to_us / self.from_us)))


def shapes(sweep: Sweep, observed: Observed) -> tuple[Shape, ...]:
    """Find them in every iteration of a sweep; `observed` is the same sweep, condensed."""
    by_kind: dict[Kind, list[Digest]] = {}
    for digest in observed.digests:
        by_kind.setdefault((digest.size_bytes, digest.phase), []).append(digest)
    raw = {(pair.a, pair.b, pair.rail, pair.round): pair for pair in sweep.pairs}
    found = [one for own in by_kind.values() for one in _of(own, raw, observed.backend)]
    found.sort(key=lambda one: -one.ratio)
    return tuple(found[:MOST])


def network_us(pair: PairSamples, kind: Kind, most: int | None = None) -> list[float]:
    """The times of one size in their order, the shorter of both ends'; about `most` of them."""
    ends = [
        timing.times_us
        for end in (pair.first, pair.second)
        for timing in (end.timings if end is not None else ())
        if (timing.size_bytes, timing.phase) == kind
    ]
    step = max(1, min(map(len, ends)) // most) if most and ends else 1
    few = [times[::step] for times in ends]
    return list(map(min, *few)) if len(few) > 1 else list(*few)


def _of(own: Sequence[Digest], raw: Mapping[Turn, PairSamples], backend: str) -> Iterator[Shape]:
    """Quantiles already say of most that nothing is there; only then iterations are read."""
    pool = own[:: -(-len(own) // _POOL) or 1]
    steady = math.log1p(number(backend, "drift_effect"))
    creeping: set[Turn] = set()
    for one in own:
        if one.operations < LEAST or abs(_halves(one)) < _HALF * steady:
            continue
        trend = drift(network_us(raw[_turn(one)], _kind(one)))
        if trend and abs(math.log(trend.end / trend.start)) >= steady and _alone(one, pool):
            creeping.add(_turn(one))
            yield _shape("drift", one, trend.start, trend.end, None, trend.tau)
    apart = 1 + number(backend, "modes_effect")
    wide = [
        one
        for one in own
        if one.operations >= MODES_LEAST and one.p99_us >= apart * one.best_us > 0
    ]
    wide.sort(key=lambda one: one.p99_us / one.best_us, reverse=True)
    for one in wide[:LOOKED_AT]:
        if _turn(one) in creeping:
            continue
        two = two_modes(network_us(raw[_turn(one)], _kind(one), _ENOUGH))
        if two and two.high >= apart * two.low and _unlike(one, two, pool, raw):
            yield _shape("two_modes", one, two.low, two.high, two.share_high, two.apart)


def _kind(one: Digest) -> Kind:
    return one.size_bytes, one.phase


def _turn(one: Digest) -> Turn:
    return one.a, one.b, one.rail, one.round


def _shape(  # noqa: PLR0917  the fields that both kinds have
    kind: Literal["two_modes", "drift"],
    one: Digest,
    from_us: float,
    to_us: float,
    share: float | None,
    strength: float,
) -> Shape:
    return Shape(
        kind=kind,
        a=one.a,
        b=one.b,
        rail=one.rail,
        round=one.round,
        size_bytes=one.size_bytes,
        phase=one.phase,
        operations=one.operations,
        from_us=round(from_us, 2),
        to_us=round(to_us, 2),
        share=None if share is None else round(share, 3),
        strength=round(strength, 2),
    )


def _halves(one: Digest) -> float:
    """Log of the second half's median over the first's."""
    return math.log(one.late_us / one.early_us) if one.early_us > 0 and one.late_us > 0 else 0.0


def _peers(one: Digest, pool: Sequence[Digest]) -> list[Digest]:
    """Some that share no node with it, from all over the fabric; in a small one, all others."""
    ends = (one.a, one.b)
    others = [peer for peer in pool if peer.a not in ends and peer.b not in ends]
    if len(others) < LEAST_PEERS:
        others = [peer for peer in pool if _turn(peer) != _turn(one)]
    return others[:: -(-len(others) // PEERS) or 1]


def _alone(one: Digest, pool: Sequence[Digest]) -> bool:
    """Whether its peers do not drift the same way at least half as far."""
    peers = _peers(one, pool)
    if len(peers) < LEAST_PEERS:
        return True
    usual = median([_halves(peer) for peer in peers])
    return abs(_halves(one) - usual) >= abs(_halves(one)) / 2


def _unlike(
    one: Digest, two: Modes, pool: Sequence[Digest], raw: Mapping[Turn, PairSamples]
) -> bool:
    """Whether its peers have far fewer operations beyond the valley.

    The valley is where it is between the modes, by how much slower than a series' own fast mode.
    """
    peers = _peers(one, pool)
    valley = math.sqrt(two.high / two.low)
    shares = []
    for peer in peers:
        times = network_us(raw[_turn(peer)], _kind(peer), _ENOUGH)
        fast_us = nearest_rank(times, SHARE)
        shares.append(sum(time > valley * fast_us for time in times) / len(times))
    backend = raw[_turn(one)].backend
    if len(shares) < LEAST_PEERS:
        # Without peers a time slice of a shared core cannot be told from a second way.
        return backend != "gloo"
    return two.share_high >= _MORE * nearest_rank(shares, number(backend, "modes_peers"))
