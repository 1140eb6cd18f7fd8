"""What a median hides in a pair's times: two modes, or a drift. Shown to eyes, never judged.

Only what its peers do not show at the same size: on shared cores every second pair waits for its
time slice now and then, and clocks of a whole fleet warm up together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.fabric.decoding.numbers import number
from preflight.fabric.samples import Phase
from preflight.stats import drift as drifts
from preflight.stats import modes
from preflight.stats.quantiles import median, nearest_rank

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.fabric.digest import Digest
    from preflight.fabric.observed import Observed
    from preflight.fabric.samples import PairSamples, Sweep

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
        if one.operations < drifts.LEAST or abs(_halves(one)) < _HALF * steady:
            continue
        trend = drifts.drift(network_us(raw[_turn(one)], _kind(one)))
        if trend and abs(math.log(trend.end / trend.start)) >= steady and _alone(one, pool):
            creeping.add(_turn(one))
            yield _shape("drift", one, trend.start, trend.end, None, trend.tau)
    apart = 1 + number(backend, "modes_effect")
    wide = [
        one
        for one in own
        if one.operations >= modes.LEAST and one.p99_us >= apart * one.best_us > 0
    ]
    wide.sort(key=lambda one: one.p99_us / one.best_us, reverse=True)
    for one in wide[:LOOKED_AT]:
        if _turn(one) in creeping:
            continue
        two = modes.two_modes(network_us(raw[_turn(one)], _kind(one), _ENOUGH))
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
    one: Digest, two: modes.Modes, pool: Sequence[Digest], raw: Mapping[Turn, PairSamples]
) -> bool:
    """Whether its peers have far fewer operations beyond the valley.

    The valley is where it is between the modes, by how much slower than a series' own fast mode.
    """
    peers = _peers(one, pool)
    valley = math.sqrt(two.high / two.low)
    shares = []
    for peer in peers:
        times = network_us(raw[_turn(peer)], _kind(peer), _ENOUGH)
        fast_us = nearest_rank(times, modes.SHARE)
        shares.append(sum(time > valley * fast_us for time in times) / len(times))
    backend = raw[_turn(one)].backend
    if len(shares) < LEAST_PEERS:
        # Without peers a time slice of a shared core cannot be told from a second way.
        return backend != "gloo"
    return two.share_high >= _MORE * nearest_rank(shares, number(backend, "modes_peers"))
