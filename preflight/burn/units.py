"""Series of a burn-in as units that can be compared, and what held the clocks down."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from preflight.core.statistics import median
from preflight.facts.burn import Throttle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.core.thresholds import Thresholds
    from preflight.facts.burn import Burned, Clocks, Kind, Look, Measure, Opened, Reading
    from preflight.facts.model import Facts


FASTER_IS_LESS = frozenset({"launch_us"})
OF_THE_HOST = frozenset({"host_copy_gbs", "host_gflops", "launch_us"})
"""What the CPU decides, also on a node with GPUs: other work there is an excuse."""

NEAR, FAR, NVLINK = "near", "far", "NVLink"
"""What `alike` ends with: how a side of the host or another GPU is reached."""


class Raw(NamedTuple):
    """One series before it is held against anything."""

    node: str
    kind: Kind
    name: str
    reading: Reading
    alike: str
    """What peers must have in common with it: the model, the side, the way between two."""
    device: int | None
    """The device at fault if it is slow, where it is one."""

    @property
    def measure(self) -> Measure:
        """What was measured."""
        return self.reading.measure

    @property
    def values(self) -> tuple[float, ...]:
        """The samples that count: of a long load the second half, when the device is warm."""
        samples = self.reading.samples
        return samples[len(samples) // 2 :] if self.measure == "sustained_tflops" else samples

    @property
    def best(self) -> float:
        """The best sample: a slow part slows them all, a busy machine leaves some alone.

        A GPU's long load counts by its median: what it cannot hold, it does not have.
        """
        if self.measure == "sustained_tflops" and self.kind == "cuda":
            return median(self.values)
        return min(self.values) if self.measure in FASTER_IS_LESS else max(self.values)

    @property
    def speed(self) -> float:
        """The same, so that more is better."""
        return speed(self.measure, self.best)

    @property
    def excusable(self) -> bool:
        """Whether waiting for a CPU may be all that is wrong."""
        return self.kind == "cpu" or self.measure in OF_THE_HOST


def speed(measure: Measure, value: float) -> float:
    """Turn a value of a measure into a number of which more is better, and back."""
    return 1 / value if measure in FASTER_IS_LESS else value


def units(node: str, burned: Burned, facts: Facts | None) -> Iterator[Raw]:
    """Every series of one node. `facts` number its GPUs, and tell what lies between two."""
    if burned.ready is None:
        return
    kind = burned.ready.kind
    names = Names(burned, facts)
    for reading in burned.readings:
        yield Raw(
            node, kind, _name(reading, names), reading, _alike(reading, names, facts),
            reading.device if reading.to is None else None,
        )  # fmt: skip


class Names:
    """What a node's devices are called: as NVML numbers them, whatever CUDA was shown."""

    def __init__(self, burned: Burned, facts: Facts | None) -> None:
        self.opened: dict[int, Opened] = {one.device: one for one in burned.opened}
        self._word = "GPU" if burned.ready is None or burned.ready.kind == "cuda" else "slot"
        gpus = facts.gpus or () if facts is not None else ()
        self._index = {gpu.bus_id.lower(): gpu.index for gpu in gpus}

    def index(self, device: int) -> int:
        """NVML's number of a device; CUDA's where its address is not known."""
        opened = self.opened.get(device)
        return self._index.get(opened.bus_id.lower() if opened else "", device)

    def model(self, device: int) -> str:
        """Its model; a CPU that stands for a device is named by its number, and like any other."""
        opened = self.opened.get(device)
        return opened.name if opened is not None and self._word == "GPU" else ""

    def of(self, device: int) -> str:
        """Its name: "GPU 5", or "slot 1" for a CPU that stands for a device."""
        return f"{self._word} {self.index(device)}"


def _name(reading: Reading, names: Names) -> str:
    if reading.device is not None and reading.to is not None:
        return f"{names.of(reading.device)} to {names.index(reading.to)}"
    if reading.device is not None:
        side = f" with NUMA node {reading.side}" if reading.side is not None else ""
        return names.of(reading.device) + side
    return reading.name or f"NUMA node {reading.side or 0}"


def _alike(reading: Reading, names: Names, facts: Facts | None) -> str:
    if reading.device is None:
        rate = _nic_rate(reading.name, facts) if reading.name else ""
        return rate or f"{reading.threads} threads"
    opened = names.opened.get(reading.device)
    model = names.model(reading.device)
    if reading.to is not None:
        return f"{model} {_way(names.index(reading.device), names.index(reading.to), facts)}"
    if reading.side is not None:
        return f"{model} {_distance(reading.side, opened.numa if opened else None)}"
    return model


def _distance(side: int, numa: int | None) -> str:
    if numa is None:
        return f"side {side}"
    return NEAR if side == numa else FAR


def _way(a: int, b: int, facts: Facts | None) -> str:
    """What lies between two GPUs, by NVML."""
    pairs = facts.gpu_pairs or () if facts is not None else ()
    for pair in pairs:
        if {pair.a, pair.b} == {a, b}:
            return NVLINK if pair.p2p_nvlink == "ok" else pair.ancestor
    return "unknown"


def _nic_rate(name: str, facts: Facts | None) -> str:
    nics = facts.nics or () if facts is not None else ()
    rates = (port.rate for nic in nics if nic.name == name for port in nic.ports if port.rate)
    return next(rates, "NIC")


def effect_of(raw: Raw, limit: Thresholds) -> float:
    """What part of its speed must be missing to count: its measure's own, or that of its kind."""
    own = limit.get(f"{raw.kind}.{raw.measure}")
    return limit(f"{raw.kind}.effect") if own is None else own


FORCED = ("hw_thermal", "hw_power_brake", "hw_slowdown", "sw_thermal")
"""Heat and the power brake; a software power cap is how a healthy GPU meets its power limit."""

_LEAST_LOOKS = 2


def under_load(clocks: Clocks | None) -> tuple[Look, ...]:
    """The looks while it worked; the first was before."""
    return () if clocks is None else tuple(one for one in clocks.looks[1:] if _told(one))


def remark(clocks: Clocks | None) -> str:
    """Its medians under load, "1,980 MHz, 61 C, 640 W"; nothing where nothing was told."""
    looks = under_load(clocks)
    words = []
    for name, unit in (("sm_mhz", "MHz"), ("celsius", "C"), ("watts", "W")):
        told = [value for one in looks if (value := getattr(one, name)) is not None]
        if told:
            words.append(f"{median(told):,.0f} {unit}")
    held = _reasons(looks)
    return ", ".join([*words, *held])


def throttle(name: str, clocks: Clocks, limit: Thresholds) -> Throttle | None:
    """What held its clocks down for more than a moment; None if nothing did."""
    looks = under_load(clocks)
    held = [one for one in looks if set(one.reasons or ()) & set(FORCED)]
    if len(held) < max(_LEAST_LOOKS, limit("cuda.throttled") * len(looks)):
        return None
    return Throttle(
        name=name,
        reasons=tuple(_reasons(tuple(held))),
        looks=len(held),
        of=len(looks),
        remark=remark(clocks),
        cause=name,
    )


def _reasons(looks: tuple[Look, ...]) -> list[str]:
    seen = Counter(reason for one in looks for reason in one.reasons or () if reason in FORCED)
    return [reason for reason, _ in seen.most_common()]


def _told(look: Look) -> bool:
    return look.sm_mhz is not None or look.reasons is not None
