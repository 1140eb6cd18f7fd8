"""What a node's own all-reduce is held against: its peers' medians, the promise, shipped floors."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from preflight.fabric.limits import limit
from preflight.fabric.measure import wire_from
from preflight.fleet.baselines import gpu_floor
from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.inside_measure import Events, Measured, Size
    from preflight.fleet.model import Promise

FEWEST = 2
"""Other nodes; fewer are no yardstick."""

DEVIATIONS, SIGMA = 6.0, 1.4826
"""So many standard deviations off the peers' median, one being 1.4826 MAD for normal noise."""


class Bound(NamedTuple):
    """The strictest limit on a node's bandwidth, and who set it."""

    gbs: float | None
    origin: str
    peers_gbs: float | None
    beyond: int
    """A larger size that the peers came to and this node did not; 0: none."""


class Peers(NamedTuple):
    """The other nodes of the same group with as many rails."""

    nodes: tuple[Measured, ...]

    def bound(self, own: Measured, promise: Promise) -> Bound:
        """What the largest size that the node reached is held against, as best operation, GB/s."""
        top = own.sizes[-1].size_bytes
        furthest = median([one.sizes[-1].size_bytes for one in self.nodes] or [0])
        beyond = int(furthest) if len(self.nodes) >= FEWEST and furthest > top else 0
        if top < wire_from(own.backend):
            return Bound(None, "", None, beyond)
        bounds: list[tuple[float, str]] = []
        speeds = [math.log(one.best_gbs) for one in self._sizes(top)]
        peers_gbs = None
        if len(speeds) >= FEWEST:
            peers_gbs = math.exp(median(speeds))
            share = self._share(own.backend, speeds)
            bounds.append((peers_gbs * share, f"{share:.2g} of the peers' median"))
        if promise.intra_node_min_gbs is not None:
            origin = promise.origin or "the inventory"
            bounds.append((promise.intra_node_min_gbs, f"promised in {origin}"))
        elif own.backend == "nccl":
            known = gpu_floor(promise, "all_reduce", algorithm="ring")
            if known is not None and top >= known.from_bytes:
                bounds.append((known.value, known.origin))
        floor = limit(own.backend, "inside_floor_gbs")
        if floor is not None:
            bounds.append((floor, f"shipped floor for {own.backend}"))
        gbs, origin = max(bounds) if bounds else (None, "")
        return Bound(gbs, origin, peers_gbs, beyond if gbs is None else 0)

    def latency_us(self, own: Measured) -> float | None:
        """The peers' median at the node's smallest size; None where there are too few."""
        times = [one.p50_us for one in self._sizes(own.sizes[0].size_bytes)]
        return median(times) if len(times) >= FEWEST else None

    def latency_limit_us(self, own: Measured) -> float | None:
        """What its own median must not exceed."""
        usual = self.latency_us(own)
        ratio, effect = limit(own.backend, "latency_ratio"), limit(own.backend, "latency_effect_us")
        if usual is None or ratio is None or effect is None:
            return None
        return max(usual * ratio, usual + effect)

    @property
    def worst_events(self) -> Events | None:
        """What came and went at the worst of them; None where there are too few."""
        if len(self.nodes) < FEWEST:
            return None
        return max((one.events for one in self.nodes), key=lambda events: events.lost_us)

    @property
    def way(self) -> str:
        """What carries most of them, where that is most."""
        ways = Counter(one.net for one in self.nodes if one.net).most_common(1)
        return ways[0][0] if ways and ways[0][1] * 2 > len(self.nodes) >= FEWEST else ""

    def _sizes(self, size_bytes: int) -> Sequence[Size]:
        return [each for one in self.nodes for each in one.sizes if each.size_bytes == size_bytes]

    @staticmethod
    def _share(backend: str, speeds: Sequence[float]) -> float:
        """The part of the peers' median that is still healthy: beyond scatter, and by an effect."""
        middle = median(speeds)
        scatter = SIGMA * median([abs(speed - middle) for speed in speeds])
        least = limit(backend, "inside_scatter") or 0.0
        effect = limit(backend, "slow_effect") or 0.0
        return min(1 - effect, math.exp(-DEVIATIONS * max(scatter, least)))
