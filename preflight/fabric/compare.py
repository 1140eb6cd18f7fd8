"""Each pair against its peers, and against what was promised: which pairs are bad, and by what.

Peers of a pair touch neither of its nodes, so that one slow node cannot drag its own yardstick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct

from preflight.fabric.limits import limit
from preflight.fabric.measure import WIRE_BOUND, Summary, summarise
from preflight.fabric.observed import failed_by_itself
from preflight.fabric.samples import PairState
from preflight.fabric.words import size
from preflight.fleet.baselines import rail_floor
from preflight.stats.leave_out import LeaveOut
from preflight.stats.quantiles import median, nearest_rank

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.measure import SizeSummary
    from preflight.fabric.samples import End, PairSamples, Sweep
    from preflight.fleet.model import Host, Promise

ABSOLUTE_FROM = 1 << 20
PLATFORM_FROM = 16 << 20
"""Floors of platforms are for sizes from here on: below, latency still shows."""
_FEW_RUNS = 3
MOSTLY, FAST = 0.75, 0.75
_FEW_RAILS, _BOTH = 2, 2

Slow = Literal["", "bandwidth", "latency", "reach"]
"""`reach`: its time was up at sizes too small to judge, while peers came further."""


Yard = Literal["", "peers", "promise", "platform", "history", "least"]
"""`least`: the shipped floor of any network, where nothing is known of this one."""


class Bound(Struct, frozen=True):
    """The strictest limit on a pair's bandwidth and who set it; `peers_gbs` where there are any."""

    gbs: float | None = None
    origin: str = ""
    peers_gbs: float | None = None
    peers: int = 0
    decided_by: Yard = ""


class Seen(Struct, frozen=True, kw_only=True):
    """One pair on one rail, judged by itself: not yet whose fault it is."""

    a: str
    b: str
    rail: int
    round: int
    state: PairState
    summary: Summary
    at_bytes: int = 0
    """The largest size that was measured; bandwidth is judged there."""
    busbw_gbs: float | None = None
    bound: Bound = Bound()
    latency_us: float | None = None
    peers_latency_us: float | None = None
    latency_limit_us: float | None = None
    slow: Slow = ""
    suspect: str = ""
    """The end whose own measuring process hung or died; the other merely lost its partner."""
    top_bytes: int = 0
    """The ladder's largest size."""
    spent_s: float = 0.0
    """What its timed operations took, at the end that took longer."""

    @property
    def bad(self) -> bool:
        """Whether somebody must be blamed for it."""
        return bool(self.slow) or self.state not in ("measured", "not_run")

    @property
    def good(self) -> bool:
        """Whether it clears both of its ends."""
        return self.state == "measured" and not self.slow and self.bound.gbs is not None

    @property
    def short(self) -> bool:
        """Whether its time was up before a size at which bandwidth can be judged."""
        return self.state == "measured" and self.at_bytes < min(WIRE_BOUND, self.top_bytes)

    @property
    def how_far(self) -> str:
        """How far a short pair came, in words."""
        reached, top = size(self.at_bytes), size(self.top_bytes)
        return f"only {reached} of {top} were reached, in {self.spent_s:.2g} s of the pair's time"

    @property
    def name(self) -> str:
        """The pair as reports write it."""
        return f"{self.a}-{self.b}"


def compare(
    sweep: Sweep, hosts: Sequence[Host], earlier: Mapping[str, Sequence[float]] | None = None
) -> tuple[Seen, ...]:
    """Judge every pair of the sweep by itself, in the sweep's order.

    `earlier`: what pairs reached in earlier runs, GB/s by `speed_key`.
    """
    summaries = [(pair, summarise(pair)) for pair in sweep.pairs]
    measured = [(pair, summary) for pair, summary in summaries if summary.state == "measured"]
    yardstick = _Yardstick(
        _Peers(measured),
        {host.name: host.promised for host in hosts},
        max((rung.size_bytes for rung in sweep.ladder), default=0),
        _floors(measured),
        earlier or {},
    )
    return tuple(_seen(pair, summary, yardstick) for pair, summary in summaries)


class _Yardstick(NamedTuple):
    """What pairs are held against."""

    peers: _Peers
    promised: Mapping[str, Promise]
    top_bytes: int
    """The ladder's largest size."""
    floors: Mapping[str, float]
    """By backend, GB/s."""
    earlier: Mapping[str, Sequence[float]]


def _seen(pair: PairSamples, summary: Summary, yardstick: _Yardstick) -> Seen:
    if summary.state != "measured" or not summary.sizes:
        return _plain(pair, summary)
    least, most = summary.sizes[0], summary.sizes[-1]
    bound = _bound(pair, most, yardstick)
    peers_us = yardstick.peers.latency(pair, least.size_bytes)
    latency_limit_us = _latency_limit(pair.backend, peers_us)
    slow: Slow = ""
    # Even the fastest iteration: a slow link slows them all, a busy machine leaves some alone.
    if bound.gbs is not None and most.best_gbs < bound.gbs:
        slow = "bandwidth"
    elif latency_limit_us is not None and least.p50_us > latency_limit_us:
        slow = "latency"
    elif most.size_bytes < min(WIRE_BOUND, yardstick.top_bytes) and yardstick.peers.beyond(
        pair, most.size_bytes
    ):
        slow = "reach"
    return Seen(
        a=pair.a,
        b=pair.b,
        rail=pair.rail,
        round=pair.round,
        state=summary.state,
        summary=summary,
        at_bytes=most.size_bytes,
        busbw_gbs=most.busbw_gbs,
        bound=bound,
        latency_us=least.p50_us,
        peers_latency_us=peers_us,
        latency_limit_us=latency_limit_us,
        slow=slow,
        top_bytes=yardstick.top_bytes,
        spent_s=max(_spent_s(pair.first), _spent_s(pair.second)),
    )


def _plain(pair: PairSamples, summary: Summary) -> Seen:
    return Seen(
        a=pair.a,
        b=pair.b,
        rail=pair.rail,
        round=pair.round,
        state=summary.state,
        summary=summary,
        suspect=failed_by_itself(pair),
    )


def _spent_s(end: End | None) -> float:
    timings = end.timings if end else ()
    return sum(sum(timing.times_us) + sum(timing.gaps_us) for timing in timings) / 1e6


def speed_key(pair: PairSamples, size_bytes: int) -> str:
    """By what a history keeps a pair's bandwidth."""
    return f"{pair.a} {pair.b} {pair.rail} {pair.backend} {size_bytes}"


def _bound(pair: PairSamples, at: SizeSummary, yardstick: _Yardstick) -> Bound:
    """The stricter of a share of the peers' median and of an absolute limit.

    That is the promise; without one, the floor of the promised platform; without peers as well,
    what the pair itself reached in earlier runs; and the floor of any network. Small sizes are all
    latency, so bandwidth is judged on none of them; absolute limits are for the largest size, or
    for whatever a pair reached that was too slow to be asked for it.
    """
    if at.size_bytes < WIRE_BOUND:
        return Bound()
    bounds: list[tuple[float, str, Yard]] = []
    peers_gbs, count, which = yardstick.peers.busbw(pair, at.size_bytes)
    ratio = limit(pair.backend, "peers_ratio")
    if peers_gbs is not None and ratio is not None:
        bounds.append((peers_gbs * ratio, f"{ratio:g} of the {which}' median", "peers"))
    if at.size_bytes >= ABSOLUTE_FROM or at.size_bytes < yardstick.top_bytes:
        known = _promised(pair, at, yardstick.promised)
        if known is None and not bounds:
            known = _history(pair, at, yardstick.earlier)
        floor = yardstick.floors.get(pair.backend)
        least = None if floor is None else (floor, f"shipped floor for {pair.backend}")
        if known is not None:
            bounds.append(known)
        if least is not None and (known is None or known[2] == "history"):
            bounds.append((*least, "least"))
    if not bounds:
        return Bound(peers_gbs=peers_gbs, peers=count)
    gbs, origin, yard = max(bounds)
    return Bound(gbs, origin, peers_gbs, count, yard)


def _promised(
    pair: PairSamples, at: SizeSummary, promised: Mapping[str, Promise]
) -> tuple[float, str, Yard] | None:
    """The lower of both ends' promises, as a pair is as fast as its slower end; else floors."""
    ends = [promised[name] for name in (pair.a, pair.b) if name in promised]
    own = [
        (one.allreduce_min_gbs, f"promised in {one.origin or 'the inventory'}")
        for one in ends
        if one.allreduce_min_gbs is not None
    ]
    if own:
        return (*min(own), "promise")
    floors = [(floor, one.origin) for one in ends if (floor := rail_floor(one)) is not None]
    # A floor is known if both ends' NICs are; by TCP on CPUs no NIC's rate is reached.
    if pair.backend != "nccl" or at.size_bytes < PLATFORM_FROM or len(floors) < _BOTH:
        return None
    floor, origin = min(floors, key=lambda one: one[0].gbs)
    where = f", promised in {origin}" if origin else ""
    return floor.gbs, f"floor for {floor.platform}{where}", "platform"


def _history(
    pair: PairSamples, at: SizeSummary, earlier: Mapping[str, Sequence[float]]
) -> tuple[float, str, Yard] | None:
    """A share of what the pair itself reached, where it was measured often enough."""
    known = earlier.get(speed_key(pair, at.size_bytes), ())
    ratio = limit(pair.backend, "history_ratio")
    if len(known) < _FEW_RUNS or ratio is None:
        return None
    words = f"{ratio:g} of its median in {len(known)} earlier runs, no peers"
    return median(known) * ratio, words, "history"


def _floors(measured: Sequence[tuple[PairSamples, Summary]]) -> dict[str, float]:
    """The shipped floor by backend, lower where even the fast pairs are near it.

    On a machine that is slow as a whole it takes being slower than the others, too; but where most
    pairs are below the floor it stands as it is: that is no healthy fabric.
    """
    reached: dict[str, list[float]] = {}
    for pair, summary in measured:
        if summary.sizes and summary.sizes[-1].size_bytes >= WIRE_BOUND:
            reached.setdefault(pair.backend, []).append(summary.sizes[-1].best_gbs)
    floors: dict[str, float] = {}
    for backend, speeds in reached.items():
        floor = limit(backend, "floor_gbs")
        if floor is None:
            continue
        below = sum(speed < floor for speed in speeds)
        fast = nearest_rank(speeds, FAST) * (1 - (limit(backend, "slow_effect") or 0.0))
        floors[backend] = floor if below > MOSTLY * len(speeds) else min(floor, fast)
    return floors


def _latency_limit(backend: str, peers_us: float | None) -> float | None:
    ratio, effect_us = limit(backend, "latency_ratio"), limit(backend, "latency_effect_us")
    if peers_us is None or ratio is None or effect_us is None:
        return None
    return max(peers_us * ratio, peers_us + effect_us)


class _Peers:
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

    def beyond(self, pair: PairSamples, size_bytes: int) -> bool:
        """Whether any peer came to a larger size."""
        ends = {pair.a, pair.b}
        return any(
            summary.sizes and summary.sizes[-1].size_bytes > size_bytes
            for other, summary in self._measured
            if ends.isdisjoint((other.a, other.b))
        )

    def latency(self, pair: PairSamples, size_bytes: int) -> float | None:
        """Median of the peers' median times, us."""
        return self._times[size_bytes].median((pair.a, pair.b))
