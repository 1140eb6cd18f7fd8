"""Turns the series of a burn-in into comparable units, and finds the bound for each.

A unit is compared with the floor of its model, its own earlier nights, and the other units of its
kind; a unit is never part of the population that it is compared with. Numbers are speeds: more is
always better. What throttled a GPU during the load is found here, too.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from functools import cache, cached_property
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from preflight.core.statistics import healthy_share, median, usual_speed
from preflight.facts.burn import Burned, Clocks, Kind, Look, Measure, Opened, Reading, Throttle
from preflight.fleet.baselines import Measure as Baseline
from preflight.fleet.baselines import gpu_floor, gpu_floor_of_model
from preflight.history.run_record import LONGEST_WORD, split_gpu_unit, unit_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from preflight.core.thresholds import Thresholds
    from preflight.facts.model import Facts
    from preflight.fleet.model import Expected


LOWER_IS_BETTER = frozenset({"launch_us"})
CPU_MEASURES = frozenset({"host_copy_gbs", "host_gflops", "launch_us"})
"""Measures of the CPU, also on a node with GPUs: other work on the CPU excuses a slow result."""

_CLOCK_MEASURES = ("gemm_tflops", "sustained_tflops", "memory_gbs")
"""Measures that clocks can explain."""

NEAR, FAR, NVLINK = "near", "far", "NVLink"
"""`peer_key` ends with one of these: how a NUMA node or another GPU is reached."""


class RawSeries(NamedTuple):
    """One series before it is compared with anything."""

    node: str
    kind: Kind
    name: str
    reading: Reading
    peer_key: str
    """What its peers must share: the model, the NUMA distance, the path between two GPUs."""
    cause: str
    """The device at fault if it is slow; "" where it cannot be one device."""
    remark: str
    """The device's clocks under load, where they can explain the result."""
    model: str = ""
    """A GPU's name by its driver; "" if its power limit is lowered: it need not be as fast."""

    @property
    def measure(self) -> Measure:
        """What was measured."""
        return self.reading.measure

    @property
    def values(self) -> tuple[float, ...]:
        """The samples that count: of the sustained load only the second half (a warm device)."""
        samples = self.reading.samples
        return samples[len(samples) // 2 :] if self.measure == "sustained_tflops" else samples

    @property
    def best(self) -> float:
        """The best sample: a slow device slows all samples, a busy machine only some.

        A GPU's sustained load counts by its median.
        """
        if self.measure == "sustained_tflops" and self.kind == "cuda":
            return median(self.values)
        return min(self.values) if self.measure in LOWER_IS_BETTER else max(self.values)

    @property
    def speed(self) -> float:
        """The best sample as a number of which more is better."""
        return speed(self.measure, self.best)

    @property
    def excusable(self) -> bool:
        """Whether waiting for a CPU can explain a slow result."""
        return self.kind == "cpu" or self.measure in CPU_MEASURES


def speed(measure: Measure, value: float) -> float:
    """Convert a value of a measure to a number of which more is better, or back."""
    return 1 / value if measure in LOWER_IS_BETTER else value


def series_of_node(node: str, burned: Burned, facts: Facts | None) -> Iterator[RawSeries]:
    """Every series of one node. `facts` give the GPUs' indices and the paths between them."""
    if burned.ready is None:
        return
    kind, names, full_power = burned.ready.kind, Names(burned, facts), _at_full_power(facts)
    clocks = {event.device: event for event in burned.clocks}
    for reading in burned.readings:
        cause = remark = model = ""
        if reading.device is not None and reading.to is None:
            cause = names.of(reading.device)
            if kind == "cuda" and reading.measure in _CLOCK_MEASURES:
                remark = clock_remark(clocks.get(reading.device))
            if names.index(reading.device) in full_power:
                model = names.model(reading.device)
        name, peer_key = _name(reading, names), _peer_key(reading, names, facts)
        yield RawSeries(node, kind, name, reading, peer_key, cause, remark, model)


def _at_full_power(facts: Facts | None) -> set[int]:
    """NVML's indices of GPUs whose power limit is known, and at least their default."""
    gpus = (facts.gpus or ()) if facts is not None else ()
    health = ((gpu.index, gpu.health) for gpu in gpus if gpu.health is not None)
    return {at for at, gpu in health if (gpu.power_limit_w or 0) >= (gpu.power_default_w or 1)}


class Names:
    """Names of a node's devices, with NVML's indices rather than CUDA's."""

    def __init__(self, burned: Burned, facts: Facts | None) -> None:
        self.opened: dict[int, Opened] = {event.device: event for event in burned.opened}
        self._word = "GPU" if burned.ready is None or burned.ready.kind == "cuda" else "slot"
        gpus = facts.gpus or () if facts is not None else ()
        self._index = {gpu.bus_id.lower(): gpu.index for gpu in gpus}

    def index(self, device: int) -> int:
        """NVML's index of a device; CUDA's where its PCI address is not known."""
        opened = self.opened.get(device)
        return self._index.get(opened.bus_id.lower() if opened else "", device)

    def model(self, device: int) -> str:
        """The device's model; "" for a CPU in place of a GPU, since all of these are alike."""
        opened = self.opened.get(device)
        return opened.name if opened is not None and self._word == "GPU" else ""

    def of(self, device: int, to: int | None = None) -> str:
        """A device: "GPU 5", or "slot 1" for a CPU in its place; a path: "GPU 5 to 3"."""
        name = f"{self._word} {self.index(device)}"
        return name if to is None else f"{name} to {self.index(to)}"


def _name(reading: Reading, names: Names) -> str:
    if reading.device is not None:
        no_side = reading.to is not None or reading.side is None
        side = "" if no_side else f" with NUMA node {reading.side}"
        return names.of(reading.device, reading.to) + side
    return reading.name or f"NUMA node {reading.side or 0}"


def _peer_key(reading: Reading, names: Names, facts: Facts | None) -> str:
    if reading.device is None:
        rate = _nic_rate(reading.name, facts) if reading.name else ""
        return rate or f"{reading.threads} threads"
    opened = names.opened.get(reading.device)
    model = names.model(reading.device)
    if reading.to is not None:
        return f"{model} {_path(names.index(reading.device), names.index(reading.to), facts)}"
    if reading.side is not None:
        return f"{model} {_distance(reading.side, opened.numa if opened else None)}"
    return model


def _distance(side: int, numa: int | None) -> str:
    if numa is None:
        return f"side {side}"
    return NEAR if side == numa else FAR


def _path(a: int, b: int, facts: Facts | None) -> str:
    """The kind of path between two GPUs, according to NVML."""
    pairs = facts.gpu_pairs or () if facts is not None else ()
    for pair in pairs:
        if {pair.a, pair.b} == {a, b}:
            return NVLINK if pair.p2p_nvlink == "ok" else pair.ancestor
    return "unknown"


def _nic_rate(name: str, facts: Facts | None) -> str:
    nics = facts.nics or () if facts is not None else ()
    rates = (port.rate for nic in nics if nic.name == name for port in nic.ports if port.rate)
    return next(rates, "NIC")


def effect_of(raw: RawSeries, limit: Thresholds) -> float:
    """The share of speed that must be missing to count: its measure's limit, else its kind's."""
    measure_effect = limit.get(f"{raw.kind}.{raw.measure}")
    return limit(f"{raw.kind}.effect") if measure_effect is None else measure_effect


FORCED = ("hw_thermal", "hw_power_brake", "hw_slowdown", "sw_thermal")
"""Heat and the power brake. A software power cap is no fault: a healthy GPU at its power limit."""

_LEAST_LOOKS = 2


def looks_under_load(clocks: Clocks | None) -> tuple[Look, ...]:
    """NVML's readings during the load; the first one was before it."""
    looks = clocks.looks[1:] if clocks is not None else ()
    return tuple(look for look in looks if look.sm_mhz is not None or look.reasons is not None)


def clock_remark(clocks: Clocks | None) -> str:
    """The medians under load, "1,980 MHz, 61 C, 640 W"; "" where NVML reported nothing."""
    looks = looks_under_load(clocks)
    words = []
    for name, unit in (("sm_mhz", "MHz"), ("celsius", "C"), ("watts", "W")):
        values = [value for look in looks if (value := getattr(look, name)) is not None]
        if values:
            words.append(f"{median(values):,.0f} {unit}")
    return ", ".join([*words, *_reasons(looks)])


def find_throttle(name: str, clocks: Clocks, limit: Thresholds) -> Throttle | None:
    """What throttled the device for more than a moment; None if nothing did."""
    looks = looks_under_load(clocks)
    throttled = [look for look in looks if set(look.reasons or ()) & set(FORCED)]
    if len(throttled) < max(_LEAST_LOOKS, limit("cuda.throttled") * len(looks)):
        return None
    return Throttle(
        name=name,
        reasons=tuple(_reasons(tuple(throttled))),
        looks=len(throttled),
        of=len(looks),
        remark=clock_remark(clocks),
        cause=name,
    )


def _reasons(looks: tuple[Look, ...]) -> list[str]:
    counts = Counter(reason for look in looks for reason in look.reasons or () if reason in FORCED)
    return [reason for reason, _ in counts.most_common()]


_BASELINE: Final[dict[Measure, Baseline]] = {
    "gemm_tflops": "gemm_bf16",
    "memory_gbs": "hbm_copy",
    "h2d_gbs": "h2d",
    "d2h_gbs": "d2h",
    "p2p_gbs": "p2p",
    "launch_us": "launch",
}


class SpeedLimit(NamedTuple):
    """A limit on a speed, and where it comes from."""

    speed: float
    origin: str
    peers: float | None = None


def inventory_floor(raw: RawSeries, expectation: Expected, limit: Thresholds) -> SpeedLimit | None:
    """The floor of one series that the inventory or its platform sets; None if there is none.

    A platform's numbers hold for a GPU's own NUMA node, and for GPUs joined by NVLink.
    """
    if raw.kind == "cpu":
        value = limit.get(f"cpu.floor_{raw.measure}")
        origin = "shipped floor for a CPU"
        return None if value is None else SpeedLimit(speed(raw.measure, value), origin)
    measure = baseline_of(raw)
    bound = None if measure is None else gpu_floor(expectation, measure)
    return None if bound is None else SpeedLimit(speed(raw.measure, bound.value), bound.origin)


def model_floor(raw: RawSeries, expectation: Expected) -> SpeedLimit | None:
    """The floor of the model that the driver names, if the inventory expects no model."""
    measure = baseline_of(raw)
    if measure is None or expectation.gpu_model is not None:
        return None
    bound = gpu_floor_of_model(raw.model, measure)
    return None if bound is None else SpeedLimit(speed(raw.measure, bound.value), bound.origin)


def baseline_of(raw: RawSeries) -> Baseline | None:
    """Which number of a platform applies to a series; None for CPUs and for longer paths."""
    joined = raw.measure != "p2p_gbs" or raw.peer_key.endswith(NVLINK)
    if raw.kind == "cpu" or not joined or raw.peer_key.endswith(FAR):
        return None
    return _BASELINE.get(raw.measure)


MIN_PEERS = 2
"""Peers that are needed for a comparison."""

MOST_UNITS = 512
"""With more units than this, each other node counts as one number."""


class Population:
    """The speeds of units that have the same `peer_key`, by node."""

    def __init__(self, speeds: dict[str, list[float]], *, effect: float, scatter: float) -> None:
        """`effect`: the share of speed whose loss matters. `scatter`: the least assumed scatter."""
        self._effect, self._scatter = effect, scatter
        self._speeds = {node: values for node, values in speeds.items() if values}
        many = sum(map(len, speeds.values())) > MOST_UNITS and len(self._speeds) > MIN_PEERS
        medians = ((node, median(values)) for node, values in self._speeds.items())
        self._median_of = dict(medians if many else ())
        self._medians = sorted(self._median_of.values())
        find: Callable[[str], SpeedLimit | None]
        find = self._limit_by_medians if many else self._limit_by_speeds
        self.limit_by_other_nodes = cache(find)
        """The limit by the other nodes: a node whose units are all slow shows only here."""

    def limit_by_same_node(self, node: str, index: int) -> SpeedLimit | None:
        """The limit by the other units of the same node."""
        others = [*self._speeds[node][:index], *self._speeds[node][index + 1 :]]
        return self._peer_limit(others, "others here")

    def _peer_limit(self, others: Sequence[float], where: str) -> SpeedLimit | None:
        """The limit below which a unit is slow compared with `others`; None if they are too few."""
        if len(others) < MIN_PEERS:
            return None
        middle, share = self._middle_and_share(sorted(others))
        origin = f"{share:.2g} of the median of {len(others)} {where}"
        return SpeedLimit(middle * share, origin, middle)

    def _middle_and_share(self, ordered: Sequence[float]) -> tuple[float, float]:
        """The middle of these values, and the share of it below which a value is slow.

        Of an even number, the slower of the middle two counts: one unusually fast unit must not
        make its neighbours look slow.
        """
        middle = ordered[(len(ordered) - 1) // 2]
        mad = median([abs(math.log(value / middle)) for value in ordered])
        return middle, healthy_share(mad, effect=self._effect, scatter=self._scatter)

    def _limit_by_speeds(self, node: str) -> SpeedLimit | None:
        others = [values for name, values in self._speeds.items() if name != node]
        nodes = "another node" if len(others) == 1 else f"{len(others)} other nodes"
        return self._peer_limit([*chain.from_iterable(others)], f"others on {nodes}")

    @cached_property
    def _healthy_share(self) -> float:
        return self._middle_and_share(self._medians)[1]

    def _limit_by_medians(self, node: str) -> SpeedLimit:
        """The limit by the other nodes' medians; the scatter is computed once, over all nodes."""
        # The lower middle of the others, found in the list that includes this node.
        lower_middle = (len(self._medians) - 2) // 2
        index = bisect_left(self._medians, self._median_of[node])
        middle = self._medians[lower_middle + (index <= lower_middle)]
        origin = f"{self._healthy_share:.2g} of the median of {len(self._medians) - 1} other nodes"
        return SpeedLimit(middle * self._healthy_share, origin, middle)


_UNSTEADY = frozenset({"p2p_gbs"})
"""A path between two GPUs belongs to neither, so it has no history of its own."""


def conditions(burned: Burned, facts: Facts | None) -> str:
    """What two nights must share to be compared: another torch may be slower."""
    if burned.ready is None:
        return ""
    driver = facts.driver.version if facts is not None else ""
    words = (burned.ready.kind, f"torch {burned.ready.torch}", driver and f"driver {driver}")
    return ", ".join(filter(None, words))[:LONGEST_WORD]


def history_key(raw: RawSeries, burned: Burned, facts: Facts | None) -> str:
    """The key of a series in the history: by its GPU's UUID if it has one, else by its node."""
    gpus = facts.gpus or () if facts is not None else ()
    under = conditions(burned, facts)
    slot, name = split_gpu_unit(raw.name) or ("", "")
    for gpu in gpus:
        if slot == str(gpu.index):
            return unit_key(gpu.uuid, raw.measure, name, under)
    return unit_key(raw.node, raw.measure, raw.name, under)


def history_limit(raw: RawSeries, earlier: Sequence[float], limit: Thresholds) -> SpeedLimit | None:
    """The limit by the unit's own earlier nights; None where these are too few.

    The speed must fall by the effect that counts against peers, and by six times its own scatter.
    """
    if raw.measure in _UNSTEADY:
        return None
    past = usual_speed(
        [speed(raw.measure, value) for value in earlier if value > 0],
        effect=effect_of(raw, limit),
        scatter=limit(f"{raw.kind}.scatter"),
    )
    if past is None:
        return None
    words = f"{past.share:.2g} of its median in {past.nights} earlier runs, no peers"
    return SpeedLimit(past.least, words)
