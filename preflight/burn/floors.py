"""What a part is held against: floors, its own earlier nights, the others.

A suspect never sits in the population that it is compared with. Numbers are speeds, so that more
is always better.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from preflight.burn.units import FAR, NVLINK, effect_of, speed
from preflight.core.statistics import healthy_share, median, usual
from preflight.fleet.baselines import gpu_floor
from preflight.history.run_record import LONGEST_WORD, of_slot, unit_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.burn.units import Raw
    from preflight.core.thresholds import Thresholds
    from preflight.facts.burn import Burned as BurnedBurned
    from preflight.facts.burn import Measure as Burned
    from preflight.facts.model import Facts
    from preflight.fleet.baselines import Measure
    from preflight.fleet.model import Promise


_BASELINE: Final[dict[Burned, Measure]] = {
    "gemm_tflops": "gemm_bf16",
    "memory_gbs": "hbm_copy",
    "h2d_gbs": "h2d",
    "d2h_gbs": "d2h",
    "p2p_gbs": "p2p",
    "launch_us": "launch",
}


class Bound(NamedTuple):
    """A limit on a speed, and who set it."""

    speed: float
    origin: str
    peers: float | None = None


def floor(raw: Raw, promise: Promise, limit: Thresholds) -> Bound | None:
    """The floor of one series by what is promised; None where nothing is known of it.

    A platform's numbers are about the near side of the host, and about GPUs joined by NVLink.
    """
    if raw.kind == "cpu":
        value = limit.get(f"cpu.floor_{raw.measure}")
        origin = "shipped floor for a CPU"
        return None if value is None else Bound(speed(raw.measure, value), origin)
    measure = baseline_of(raw)
    found = None if measure is None else gpu_floor(promise, measure)
    return None if found is None else Bound(speed(raw.measure, found.value), found.origin)


def baseline_of(raw: Raw) -> Measure | None:
    """Which number of a platform a series is about; None for a CPU's, and for longer ways."""
    joined = raw.measure != "p2p_gbs" or raw.alike.endswith(NVLINK)
    if raw.kind == "cpu" or not joined or raw.alike.endswith(FAR):
        return None
    return _BASELINE.get(raw.measure)


FEWEST = 2
"""Others; fewer are no yardstick."""

MOST_UNITS = 512
"""Of more, other nodes are represented by one number each."""


def among(others: Sequence[float], *, effect: float, scatter: float, where: str) -> Bound | None:
    """The part of the others' speed that is still healthy; None where there are too few.

    Of two others the slower counts, and of any even number the slower of the middle two: one that
    is odd by being fast must not make its neighbours slow.
    """
    if len(others) < FEWEST:
        return None
    middle = _lower_middle(sorted(others))
    share = _share(others, middle, effect, scatter)
    return Bound(middle * share, f"{share:.2g} of the median of {len(others)} {where}", middle)


def _lower_middle(ordered: Sequence[float]) -> float:
    return ordered[(len(ordered) - 1) // 2]


def _share(values: Sequence[float], middle: float, effect: float, scatter: float) -> float:
    """What part of their middle is beyond their scatter, and by an effect that matters."""
    away = [abs(math.log(one / middle)) for one in values]
    return healthy_share(away, effect=effect, scatter=scatter)


def strictest(bounds: Sequence[Bound | None]) -> Bound | None:
    """The highest of the limits that there are."""
    return max((one for one in bounds if one is not None), default=None, key=lambda one: one.speed)


class Population:
    """The units that are promised to be alike, by node."""

    def __init__(self, of_nodes: dict[str, list[float]], *, effect: float, scatter: float) -> None:
        """`effect`, `scatter`: as parts of a speed, what matters and what is always believed."""
        self._effect, self._scatter = effect, scatter
        self._of_nodes = {name: own for name, own in of_nodes.items() if own}
        self._many = sum(map(len, of_nodes.values())) > MOST_UNITS
        self._away: dict[str, Bound | None] = {}
        self._typical: dict[str, float] = {}
        self._ordered: list[float] = []
        self._healthy: float | None = None
        if self._many:
            self._typical = {name: median(own) for name, own in self._of_nodes.items()}
            self._ordered = sorted(self._typical.values())

    def here(self, node: str, place: int) -> Bound | None:
        """The bound by the others of the same node."""
        own = self._of_nodes[node]
        others = [*own[:place], *own[place + 1 :]]
        return self._among(others, "others here")

    def away(self, node: str) -> Bound | None:
        """The bound by the other nodes: a node all of whose parts are slow shows only here."""
        if node not in self._away:
            alone = self._many and len(self._typical) > FEWEST
            find = self._away_of_many if alone else self._away_of_few
            self._away[node] = find(node)
        return self._away[node]

    def _among(self, others: Sequence[float], where: str) -> Bound | None:
        return among(others, effect=self._effect, scatter=self._scatter, where=where)

    def _away_of_few(self, node: str) -> Bound | None:
        others = [own for name, own in self._of_nodes.items() if name != node]
        nodes = "another node" if len(others) == 1 else f"{len(others)} other nodes"
        values = [one for own in others for one in own]
        return self._among(values, f"others on {nodes}")

    def _away_of_many(self, node: str) -> Bound:
        """By one number per node; their scatter is counted once, as one node cannot move it."""
        if self._healthy is None:
            middle = _lower_middle(self._ordered)
            self._healthy = _share(self._ordered, middle, self._effect, self._scatter)
        rest, place = len(self._ordered) - 1, (len(self._ordered) - 2) // 2
        own = bisect_left(self._ordered, self._typical[node])
        middle = self._ordered[place + (own <= place)]
        origin = f"{self._healthy:.2g} of the median of {rest} other nodes"
        return Bound(middle * self._healthy, origin, middle)


_UNSTEADY = frozenset({"p2p_gbs"})
"""A way between two GPUs is neither one's; two or more of a kind are held against each other."""


def conditions(burned: BurnedBurned, facts: Facts | None) -> str:
    """What must be the same for two nights to be compared: another torch may be slower."""
    if burned.ready is None:
        return ""
    driver = facts.driver.version if facts is not None else ""
    words = (burned.ready.kind, f"torch {burned.ready.torch}", driver and f"driver {driver}")
    return ", ".join(filter(None, words))[:LONGEST_WORD]


def key_of(raw: Raw, burned: BurnedBurned, facts: Facts | None) -> str:
    """By what a history keeps a series: its GPU's UUID where it is a GPU's, else its node."""
    gpus = facts.gpus or () if facts is not None else ()
    under = conditions(burned, facts)
    for gpu in gpus if raw.kind == "cuda" else ():
        rest = of_slot(raw.name, gpu.index)
        if rest is not None:
            return unit_key(gpu.uuid, raw.measure, rest, under)
    return unit_key(raw.node, raw.measure, raw.name, under)


def own_nights(raw: Raw, earlier: Sequence[float], limit: Thresholds) -> Bound | None:
    """What it must reach by its own nights; None where there are too few to say.

    An effect that counts against peers must be missing here too, and six times its own scatter.
    """
    if raw.measure in _UNSTEADY:
        return None
    found = usual(
        [speed(raw.measure, value) for value in earlier if value > 0],
        effect=effect_of(raw, limit),
        scatter=limit(f"{raw.kind}.scatter"),
    )
    if found is None:
        return None
    words = f"{found.share:.2g} of its median in {found.nights} earlier runs, no peers"
    return Bound(found.least, words)


def earlier_of(
    raws: Sequence[Raw],
    fleet: Mapping[str, BurnedBurned],
    facts: Mapping[str, Facts],
    units: Mapping[str, Sequence[float]],
) -> dict[tuple[str, str, str], Sequence[float]]:
    """The earlier nights of these series, by node, measure and name."""
    found: dict[tuple[str, str, str], Sequence[float]] = {}
    for raw in raws if units else ():
        nights = units.get(key_of(raw, fleet[raw.node], facts.get(raw.node)), ())
        if nights:
            found[raw.node, raw.measure, raw.name] = nights
    return found
