"""Compare each pair with its peers and with the expected speed: which pairs are bad, and how.

With two or three nodes a pair has no peers: its other rails or the fastest other pair replace them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.statistics import LeaveOut, grouped, median, nearest_rank
from preflight.core.text import gbs, size
from preflight.fabric.observed import Digest, Observed, digests, failed_by_itself, ladder
from preflight.fabric.pair_summary import (
    bypass,
    joint_state,
    lost_accounts,
    lost_sentence,
    pair_error,
    wire_from,
)
from preflight.fabric.samples import Meeting, PairSamples, PairState, Sweep
from preflight.fleet.baselines import rail_floor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from preflight.core.thresholds import Thresholds
    from preflight.fleet.model import Expected, Host


DecidedBy = Literal["", "peers", "inventory", "platform", "history", "least"]
"""`least`: the shipped floor of any network, if nothing is known of this one."""


class Bound(Struct, frozen=True):
    """The strictest limit on a pair's bandwidth and who set it; `peers_gbs` where there are any."""

    gbs: float | None = None
    origin: str = ""
    peers_gbs: float | None = None
    decided_by: DecidedBy = ""
    peers_are: str = ""
    """What `peers_gbs` is, as in "fastest other pair"."""

    @property
    def words(self) -> str:
        """Say "peers' median 12 GB/s, limit 10 GB/s (expected by fleet.toml)"."""
        peers = f"{self.peers_are} {gbs(self.peers_gbs)}, " if self.peers_gbs is not None else ""
        return f"{peers}limit {gbs(self.gbs or 0.0)} ({self.origin})"


Slow = Literal["", "bandwidth", "latency", "reach"]
"""`reach`: its time was up at sizes too small to judge, or at a size that most peers passed."""


class PairJudgement(Meeting, frozen=True, kw_only=True):
    """One pair on one rail, judged by itself; who is at fault is decided later."""

    backend: str
    state: PairState
    error: str
    sizes: tuple[Digest, ...]
    """Of the ladder, the smallest first."""
    at_bytes: int = 0
    """The largest size that was measured; bandwidth is judged there."""
    busbw_gbs: float | None = None
    bound: Bound = Bound()
    latency_us: float | None = None
    peers_latency_us: float | None = None
    latency_limit_us: float | None = None
    slow: Slow = ""
    once: Slow = ""
    """How it was slow, if that was withdrawn because its retests were fast."""
    hung_once: bool = False
    """It hung, and every retest of the pair went well."""
    suspect: str = ""
    """The end whose own measuring process hung or died; the other only lost its partner."""
    lost: tuple[str, ...] = ()
    """The ends whose account is missing: it is not judged."""
    bypass: str = ""
    """The way past the NICs that its data took: it is not judged."""
    how_far: str = ""
    """How far it got, if its time was up before the ladder's largest size."""

    @property
    def bad(self) -> bool:
        """Whether a part must be blamed for the pair."""
        not_at_fault = self.lost or self.hung_once or self.state in ("measured", "not_run")
        return bool(self.slow) or not not_at_fault

    @property
    def good(self) -> bool:
        """Whether the pair proves both of its ends good."""
        return self.state == "measured" and not self.slow and self.bound.gbs is not None

    def times_slower(self, how: Slow) -> float | None:
        """Return how many times slower the pair is than its peers; None if unknown."""
        slow_value, fast_value = self.bound.peers_gbs, self.busbw_gbs
        if how == "latency":
            slow_value, fast_value = self.latency_us, self.peers_latency_us
        return slow_value / fast_value if slow_value and fast_value else None


def compare(
    sweep: Sweep,
    observed: Observed,
    hosts: Sequence[Host] = (),
    earlier: Mapping[str, Sequence[float]] | None = None,
    *,
    thresholds: Thresholds,
) -> tuple[PairJudgement, ...]:
    """Judge every pair of the sweep by itself, in the sweep's order.

    `observed`: the same sweep, condensed. `earlier`: what pairs reached in earlier runs, GB/s by
    `speed_key`.
    """
    condensed = grouped((digest.key, digest) for digest in observed.digests)
    unjudged = [
        PairJudgement(
            *pair.key,
            backend=pair.backend,
            state=joint_state(pair),
            error=pair_error(pair),
            sizes=ladder(condensed.get(pair.key) or digests(pair)),
        )
        for pair in sweep.pairs
    ]
    measured = [pair for pair in unjudged if pair.state == "measured"]
    backend = sweep.pairs[0].backend if sweep.pairs else ""
    limit = thresholds.for_backend(backend)
    yardstick = Yardstick(
        Peers(measured),
        {host.name: host.expected for host in hosts},
        max((rung.size_bytes for rung in sweep.ladder), default=0),
        floor_of(measured, backend, limit),
        earlier or {},
        limit,
    )
    pairs = zip(sweep.pairs, unjudged, strict=True)
    return tuple(_judge_pair(samples, pair, yardstick, sweep) for samples, pair in pairs)


def _judge_pair(
    samples: PairSamples, pair: PairJudgement, yardstick: Yardstick, sweep: Sweep
) -> PairJudgement:
    if pair.state != "measured" or not pair.sizes:
        lost = lost_accounts(samples, sweep.troubles)
        error = lost_sentence(lost) if lost else pair.error
        suspect, way = failed_by_itself(samples), bypass(samples)
        return replace(pair, error=error, suspect=suspect, lost=lost, bypass=way)
    smallest, largest = pair.sizes[0], pair.sizes[-1]
    bound = bound_of(pair, largest, yardstick)
    peers_us = yardstick.peers.latency(pair, smallest.size_bytes)
    limit_us = latency_limit_us(yardstick.limit, peers_us)
    slow: Slow = ""
    # Even the fastest iteration: a slow link slows them all, a busy machine leaves some alone.
    if bound.gbs is not None and largest.best_gbs < bound.gbs:
        slow = "bandwidth"
    elif limit_us is not None and smallest.p50_us > limit_us:
        slow = "latency"
    elif _stopped_early(pair, largest.size_bytes, yardstick):
        slow = "reach"
    return replace(
        pair,
        at_bytes=largest.size_bytes,
        busbw_gbs=largest.busbw_gbs,
        bound=bound,
        latency_us=smallest.p50_us,
        peers_latency_us=peers_us,
        latency_limit_us=limit_us,
        slow=slow,
        how_far=_how_far(samples, largest.size_bytes, yardstick.top_bytes),
    )


_FEW_PEERS, _MOST_PEERS = 3, 0.75
"""A pair that stopped is slow if at least this share of at least so many peers got further."""


def _stopped_early(pair: PairJudgement, at_bytes: int, yardstick: Yardstick) -> bool:
    """Whether a pair's time was up at a size that any peer (if it is small), or most, passed."""
    if at_bytes >= yardstick.top_bytes:
        return False
    further, peers = yardstick.peers.count_further(pair, at_bytes)
    if at_bytes < wire_from(pair.backend):
        return further > 0
    return peers >= _FEW_PEERS and further >= _MOST_PEERS * peers


def _how_far(pair: PairSamples, reached: int, top: int) -> str:
    """Say which size a pair reached, and within which time, at the end that took longer."""
    if reached >= top:
        return ""
    spent_s = max(
        sum(sum(timing.times_us) + sum(timing.gaps_us) for timing in end.timings) / 1e6
        for end in pair.ends
    )
    spent = f", in {spent_s:.2g} s of the pair's time" if spent_s else ""
    return f"only {size(reached)} of {size(top)} were reached{spent}"


INDEPENDENT = "peers' median"


class Peers:
    """Medians over the pairs that share no node with the one in question."""

    def __init__(self, measured: Sequence[PairJudgement]) -> None:
        self._measured = measured
        self._speeds = self._by_size(lambda digest: digest.busbw_gbs)
        self._times = self._by_size(lambda digest: digest.p50_us)

    def _by_size(self, value: Callable[[Digest], float]) -> dict[int, LeaveOut]:
        values = grouped(
            (digest.size_bytes, (value(digest), pair.nodes))
            for pair in self._measured
            for digest in pair.sizes
        )
        return {size_bytes: LeaveOut(of_pairs) for size_bytes, of_pairs in values.items()}

    def busbw(self, pair: PairJudgement, size_bytes: int) -> tuple[float | None, str]:
        """Return the GB/s to compare with, and what they are."""
        speeds = self._speeds[size_bytes]
        ends = pair.nodes
        # One of two peers may be bad itself: compare with the better one.
        gbs = speeds.median(ends, position=1.0)
        if gbs is not None:
            return gbs, INDEPENDENT
        rails: list[float] = []
        pairs: list[float] = []
        for other in self._measured:
            digests = (digest for digest in other.sizes if digest.size_bytes == size_bytes)
            if other is not pair and (digest := next(digests, None)) is not None:
                (rails if other.nodes == ends else pairs).append(digest.busbw_gbs)
        if len(rails) > 1:
            return median(rails), "other rails' median"
        # A slow node of three is in two of three pairs: their median is no reference.
        if len(pairs) > 1:
            return max(pairs), "fastest other pair"
        return None, ""

    def count_further(self, pair: PairJudgement, size_bytes: int) -> tuple[int, int]:
        """Return how many peers reached a larger size, and how many peers there are."""
        ends = {*pair.nodes}
        further = [
            bool(other.sizes and other.sizes[-1].size_bytes > size_bytes)
            for other in self._measured
            if ends.isdisjoint(other.nodes)
        ]
        return sum(further), len(further)

    def latency(self, pair: PairJudgement, size_bytes: int) -> float | None:
        """Median of the peers' median times, us."""
        return self._times[size_bytes].median(pair.nodes, position=0.0)


_ABSOLUTE_FROM = 1 << 20
_FEW_RUNS = 3
_MOST_BELOW, _FAST_QUANTILE = 0.75, 0.75


class Yardstick(NamedTuple):
    """What pairs are compared with."""

    peers: Peers
    expected: Mapping[str, Expected]
    top_bytes: int
    """The ladder's largest size."""
    floor_gbs: float
    earlier: Mapping[str, Sequence[float]]
    limit: Callable[[str], float]


def bound_of(pair: PairJudgement, digest: Digest, yardstick: Yardstick) -> Bound:
    """Return the stricter of a share of what peers reached and of an absolute limit.

    The absolute limit is the inventory's; else the floor of the expected platform; without peers
    that share no node with it also what the pair reached in earlier runs; else the floor of any
    network. Sizes below `wire_from` are not judged by bandwidth; absolute limits apply to the
    largest size, or to the largest that a pair reached if it was too slow for that.
    """
    limit = yardstick.limit
    if digest.size_bytes < wire_from(pair.backend):
        return Bound()
    bounds: list[tuple[float, str, DecidedBy]] = []
    peers_gbs, peers_are = yardstick.peers.busbw(pair, digest.size_bytes)
    ratio = limit("peers_ratio")
    if peers_gbs is not None:
        bounds.append((peers_gbs * ratio, f"{ratio:g} of the {peers_are}", "peers"))
    if digest.size_bytes >= _ABSOLUTE_FROM or digest.size_bytes < yardstick.top_bytes:
        reference = _expected_reference(pair, yardstick.expected)
        if reference is None and peers_are != INDEPENDENT:
            reference = _history_reference(pair, digest, yardstick.earlier, limit)
        if reference is not None:
            bounds.append(reference)
        if reference is None or reference[2] == "history":
            words = f"shipped floor for {pair.backend}"
            bounds.append((yardstick.floor_gbs, words, "least"))
    if not bounds:
        return Bound(peers_gbs=peers_gbs, peers_are=peers_are)
    gbs, origin, decided_by = max(bounds)
    return Bound(gbs, origin, peers_gbs, decided_by, peers_are)


def latency_limit_us(limit: Callable[[str], float], peers_us: float | None) -> float | None:
    """Return how long a small operation's median may take, from the peers'; None without them."""
    ratio, effect_us = limit("latency_ratio"), limit("latency_effect_us")
    return None if peers_us is None else max(peers_us * ratio, peers_us + effect_us)


def floor_of(
    measured: Sequence[PairJudgement], backend: str, limit: Callable[[str], float]
) -> float:
    """Return the shipped floor, lowered if even the fast pairs are near it.

    On a slow machine a pair must also be slower than the others; but if most pairs are below the
    floor, it is not lowered: that fabric is not good.
    """
    largest = [pair.sizes[-1] for pair in measured if pair.sizes]
    speeds = [digest.best_gbs for digest in largest if digest.size_bytes >= wire_from(backend)]
    if not speeds:
        return 0.0
    floor = limit("floor_gbs")
    fast = nearest_rank(speeds, _FAST_QUANTILE) * (1 - limit("slow_effect"))
    below = sum(speed < floor for speed in speeds)
    return floor if below > _MOST_BELOW * len(speeds) else min(floor, fast)


def _expected_reference(
    pair: PairJudgement, expected: Mapping[str, Expected]
) -> tuple[float, str, DecidedBy] | None:
    """Return the lower of both ends' expected values, else of their platforms' floors."""
    ends = [expected[name] for name in pair.nodes if name in expected]
    expected_values = [
        (end.allreduce_min_gbs, f"expected by {end.origin or 'the inventory'}")
        for end in ends
        if end.allreduce_min_gbs is not None
    ]
    if expected_values:
        return (*min(expected_values), "inventory")
    floors = [floor for end in ends if (floor := rail_floor(end)) is not None]
    # A floor is known if both ends' NICs are; gloo over TCP does not reach a NIC's rate.
    if pair.backend != "nccl" or len(floors) < len(pair.nodes):
        return None
    floor = min(floors, key=lambda floor: floor.value)
    return floor.value, floor.origin, "platform"


def _history_reference(
    pair: PairJudgement,
    digest: Digest,
    earlier: Mapping[str, Sequence[float]],
    limit: Callable[[str], float],
) -> tuple[float, str, DecidedBy] | None:
    """Return a share of what the pair reached before, if it was measured often enough."""
    speeds = earlier.get(speed_key(pair, digest.size_bytes), ())
    ratio = limit("history_ratio")
    if len(speeds) < _FEW_RUNS:
        return None
    words = f"{ratio:g} of its median in {len(speeds)} earlier runs, no peers"
    return median(speeds) * ratio, words, "history"


def speed_key(pair: PairJudgement | PairSamples, size_bytes: int) -> str:
    """Return the key under which the history keeps a pair's bandwidth."""
    return f"{pair.a} {pair.b} {pair.rail} {pair.backend} {size_bytes}"
