"""What a pair must reach: a share of its peers, a promise, a floor, or its own earlier figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct

from preflight.fabric.limits import limit
from preflight.fabric.measure import wire_from
from preflight.fabric.peers import INDEPENDENT
from preflight.fleet.baselines import rail_floor
from preflight.stats.quantiles import median, nearest_rank

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.measure import SizeSummary, Summary
    from preflight.fabric.peers import Peers
    from preflight.fabric.samples import PairSamples
    from preflight.fleet.model import Promise

_ABSOLUTE_FROM = 1 << 20
_FEW_RUNS = 3
_MOSTLY, _FAST = 0.75, 0.75
_BOTH = 2

Yard = Literal["", "peers", "promise", "platform", "history", "least"]
"""`least`: the shipped floor of any network, where nothing is known of this one."""


class Bound(Struct, frozen=True):
    """The strictest limit on a pair's bandwidth and who set it; `peers_gbs` where there are any."""

    gbs: float | None = None
    origin: str = ""
    peers_gbs: float | None = None
    peers: int = 0
    decided_by: Yard = ""
    peers_are: str = ""
    """What `peers_gbs` is, as in "fastest other pair"."""


class Yardstick(NamedTuple):
    """What pairs are held against."""

    peers: Peers
    promised: Mapping[str, Promise]
    top_bytes: int
    """The ladder's largest size."""
    floors: Mapping[str, float]
    """By backend, GB/s."""
    earlier: Mapping[str, Sequence[float]]


def bound_of(pair: PairSamples, at: SizeSummary, yardstick: Yardstick) -> Bound:
    """The stricter of a share of what peers reached and of an absolute limit.

    That is the promise; without one, the floor of the promised platform; without peers that share
    no node with it as well, what the pair itself reached in earlier runs; and the floor of any
    network. Bandwidth is judged
    on none of the sizes below `wire_from`; absolute limits are for the largest size, or for
    whatever a pair reached that was too slow to be asked for it.
    """
    if at.size_bytes < wire_from(pair.backend):
        return Bound()
    bounds: list[tuple[float, str, Yard]] = []
    peers_gbs, count, which = yardstick.peers.busbw(pair, at.size_bytes)
    ratio = limit(pair.backend, "peers_ratio")
    if peers_gbs is not None and ratio is not None:
        bounds.append((peers_gbs * ratio, f"{ratio:g} of the {which}", "peers"))
    if at.size_bytes >= _ABSOLUTE_FROM or at.size_bytes < yardstick.top_bytes:
        known = _promised(pair, yardstick.promised)
        if known is None and which != INDEPENDENT:
            known = _history(pair, at, yardstick.earlier)
        floor = yardstick.floors.get(pair.backend)
        least = None if floor is None else (floor, f"shipped floor for {pair.backend}")
        if known is not None:
            bounds.append(known)
        if least is not None and (known is None or known[2] == "history"):
            bounds.append((*least, "least"))
    if not bounds:
        return Bound(peers_gbs=peers_gbs, peers=count, peers_are=which)
    gbs, origin, yard = max(bounds)
    return Bound(gbs, origin, peers_gbs, count, yard, which)


def latency_limit_us(backend: str, peers_us: float | None) -> float | None:
    """How long a small operation's median may take, given the peers'; None without them."""
    ratio, effect_us = limit(backend, "latency_ratio"), limit(backend, "latency_effect_us")
    if peers_us is None or ratio is None or effect_us is None:
        return None
    return max(peers_us * ratio, peers_us + effect_us)


def floors(measured: Sequence[tuple[PairSamples, Summary]]) -> dict[str, float]:
    """The shipped floor by backend, lower where even the fast pairs are near it.

    On a machine that is slow as a whole it takes being slower than the others, too; but where most
    pairs are below the floor it stands as it is: that is no healthy fabric.
    """
    reached: dict[str, list[float]] = {}
    for pair, summary in measured:
        if summary.sizes and summary.sizes[-1].size_bytes >= wire_from(pair.backend):
            reached.setdefault(pair.backend, []).append(summary.sizes[-1].best_gbs)
    found: dict[str, float] = {}
    for backend, speeds in reached.items():
        floor = limit(backend, "floor_gbs")
        if floor is None:
            continue
        below = sum(speed < floor for speed in speeds)
        fast = nearest_rank(speeds, _FAST) * (1 - (limit(backend, "slow_effect") or 0.0))
        found[backend] = floor if below > _MOSTLY * len(speeds) else min(floor, fast)
    return found


def _promised(pair: PairSamples, promised: Mapping[str, Promise]) -> tuple[float, str, Yard] | None:
    """The lower of both ends' promises, as a pair is as fast as its slower end; else floors."""
    ends = [promised[name] for name in (pair.a, pair.b) if name in promised]
    own = [
        (one.allreduce_min_gbs, f"promised in {one.origin or 'the inventory'}")
        for one in ends
        if one.allreduce_min_gbs is not None
    ]
    if own:
        return (*min(own), "promise")
    floors = [floor for one in ends if (floor := rail_floor(one)) is not None]
    # A floor is known if both ends' NICs are; by TCP on CPUs no NIC's rate is reached.
    if pair.backend != "nccl" or len(floors) < _BOTH:
        return None
    floor = min(floors, key=lambda one: one.value)
    return floor.value, floor.origin, "platform"


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


def speed_key(pair: PairSamples, size_bytes: int) -> str:
    """By what a history keeps a pair's bandwidth."""
    return f"{pair.a} {pair.b} {pair.rail} {pair.backend} {size_bytes}"
