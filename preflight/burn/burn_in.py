"""A burn-in: the plan of its parts, and the collector of the events that each node sends."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from preflight.core.statistics import grouped
from preflight.core.text import count
from preflight.core.thresholds import duration
from preflight.errors import WireError
from preflight.facts.burn import (
    Absent,
    Burned,
    Busy,
    Clocks,
    Done,
    Lost,
    NoTime,
    NoTorch,
    Opened,
    Proof,
    Reading,
    Ready,
    Step,
    Trouble,
)
from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from preflight.check import Tier
    from preflight.facts.burn import Event, Kind
    from preflight.facts.model import Facts


T = TypeVar("T")

MOST_EVENTS = 20_000
"""Events of one node: 64 GPUs have 4,032 paths between them, each with a reading and a proof."""

MORE_TIME = "give more: --preflight-budget=SECONDS"
_NO_TORCH = "name the job's Python with --preflight-python"


class EventCollector:
    """The events that a node has sent so far."""

    def __init__(self) -> None:
        self.step: Step | None = None
        self.done = False
        self.busy = ""
        self.no_torch = ""
        self._ready: Ready | None = None
        self._events: list[Event] = []
        self._event_keys: set[tuple[object, ...]] = set()

    def add(self, event: Event) -> None:
        """Add an event; WireError if it repeats another, or names a device that does not exist."""
        if len(self._events) >= MOST_EVENTS:
            raise WireError(f"its burn-in sent more than {MOST_EVENTS:,} events")
        if isinstance(event, Step):
            self.step = event
        elif isinstance(event, Done):
            self.done = True
        elif isinstance(event, Busy):
            self.busy = event.error
        elif isinstance(event, NoTorch):
            self.no_torch = event.error
        elif self._is_unexpected(event):
            raise WireError(
                "its burn-in sent a result twice, or for a device that it does not have"
            )
        elif isinstance(event, Ready):
            self._ready = event
        else:
            self._events.append(event)

    def result(
        self, *, trouble: str = "", advice: str = "", stopped: bool = False, seconds: float = 0.0
    ) -> Burned:
        """Return the node's result from the events so far; `trouble`: why no more of them came."""
        if self.no_torch:
            trouble, advice = f"no usable torch in its Python: {self.no_torch}", _NO_TORCH
        return Burned(
            ready=self._ready,
            opened=self._events_of(Opened),
            readings=self._events_of(Reading),
            proofs=self._events_of(Proof),
            clocks=self._events_of(Clocks),
            lost=self._events_of(Lost),
            absent=self._events_of(Absent),
            troubles=self._events_of(Trouble),
            no_time=self._events_of(NoTime),
            done=self.done,
            left_out=f"busy: {self.busy}" if self.busy else "",
            trouble=trouble,
            advice=advice,
            stopped=stopped,
            seconds=round(seconds, 3),
        )

    def _events_of(self, kind: type[T]) -> tuple[T, ...]:
        return tuple(event for event in self._events if isinstance(event, kind))

    def _is_unexpected(self, event: Event) -> bool:
        if isinstance(event, Ready):
            return self._ready is not None
        devices = self._ready.devices if self._ready is not None else 0
        ends = (getattr(event, "device", None), getattr(event, "to", None))
        if any(end is not None and end >= devices for end in ends):
            return True
        if not isinstance(event, Reading | Proof | Opened | Clocks | NoTime):
            return False
        key: tuple[object, ...] = (type(event), *ends)
        if isinstance(event, Reading):
            key = (*key, event.measure, event.side, event.name)
        elif isinstance(event, Proof):
            key = (*key, event.what)
        repeated = key in self._event_keys
        self._event_keys.add(key)
        return repeated


def no_time_lines(fleet: Mapping[str, Burned]) -> Iterator[str]:
    """Parts that were not measured: "h[1-2]: no time for the loopback of 4 NICs, ..."."""
    parts = ((part.names, node) for node, burned in fleet.items() for part in burned.no_time)
    for names, nodes in grouped(parts).items():
        nics = count(len(names), "NIC")
        yield f"{fold(nodes)}: no time for the loopback of {nics}: {', '.join(names)}; {MORE_TIME}"


class Series(Struct, frozen=True, kw_only=True):
    """How many samples to take; each repeats its operation for about `sample_s`."""

    samples: int
    sample_s: float
    warm_s: float = 0.0


class Gemm(Series, frozen=True, kw_only=True):
    """A product of two n x n matrices."""

    n: int


class Copy(Series, frozen=True, kw_only=True):
    """Copies of a buffer of `mib` MiB."""

    mib: int


class Host(Series, frozen=True, kw_only=True):
    """Copies of a buffer, and products of two n x n matrices in float32."""

    mib: int
    n: int


class Integrity(Struct, frozen=True, kw_only=True):
    """Exact n x k by k x n products, and memory patterns over a share of the free memory."""

    n: int
    k: int
    products: int
    chunk_mib: int
    most_mib: int
    share: float
    patterns: int


class Launch(Struct, frozen=True, kw_only=True):
    """Samples, each the median of `launches` kernel launches."""

    samples: int
    launches: int


class Sustained(Struct, frozen=True, kw_only=True):
    """A load without a break; NVML is read once per window."""

    n: int
    seconds: float
    window_s: float


class Nic(Struct, frozen=True, kw_only=True):
    """Loopback runs of ib_write_bw on a NIC."""

    samples: int
    seconds: int
    bytes: int
    patience_s: float
    first: int = 0
    """The NIC of each NUMA node that comes first: time may run out before the last."""


class Load(Struct, frozen=True, kw_only=True):
    """The parts for one kind of device; None skips a part. `limit_s`: each part's deadline."""

    limit_s: dict[str, float]
    gemm: Gemm | None = None
    memory: Copy | None = None
    integrity: Integrity | None = None
    launch: Launch | None = None
    sustained: Sustained | None = None
    pcie: Copy | None = None
    p2p: Copy | None = None
    host: Host | None = None
    nic: Nic | None = None


class BurnPlan(Struct, frozen=True, kw_only=True):
    """What every node runs: `cuda` if its torch sees a GPU, else `cpu`."""

    cuda: Load
    cpu: Load

    def load_of(self, kind: Kind) -> Load:
        """The load of one kind of device."""
        return self.cuda if kind == "cuda" else self.cpu


_NIC = Nic(samples=2, seconds=1, bytes=65536, patience_s=10)


@cache
def shipped_plan() -> BurnPlan:
    """The parts of plan.toml, without NICs."""
    return msgspec.toml.decode(Path(__file__).with_name("plan.toml").read_bytes(), type=BurnPlan)


LONG_S = 300.0
"""Length of a GPU's sustained load in tier deep: a heat sink takes minutes to warm up."""

BURN_SHARE = 0.6
"""Share of the remaining time that a burn-in may take: the sweep comes after it."""

_NIC_MARGIN = 2
"""The deadline of the NICs' part is this multiple of its estimate, if time allows."""


class Devices(Struct, frozen=True, kw_only=True):
    """How many devices a burn-in measures on a node; for several nodes, the maximum of each."""

    gpus: int = 8
    """Or CPUs in their place."""
    sides: int = 2
    """NUMA nodes."""
    nic_turns: int = 4
    """NICs on the NUMA node that has most of them: they are measured one after another."""


def most_devices(facts: Iterable[Facts], slots: int) -> Devices:
    """The most devices on any of these nodes. `slots`: CPUs to load on a node without GPUs."""
    nodes = list(facts)
    gpus = max((len(node.gpus or ()) for node in nodes), default=0) or slots
    numa = {gpu.numa for node in nodes for gpu in node.gpus or () if gpu.numa is not None}
    turns = max((_nic_turns(node) for node in nodes), default=0)
    return Devices(gpus=gpus, sides=max(1, len(numa)), nic_turns=turns)


def _nic_turns(facts: Facts) -> int:
    active = [n for n in facts.nics or () if any("ACTIVE" in port.state for port in n.ports)]
    if any(nic.numa is None for nic in active):
        return len(active)
    return max(Counter(nic.numa for nic in active).values(), default=0)


def burn_plan(tier: Tier, seed: int = 0) -> BurnPlan:
    """The plan of a tier. The seed decides which NICs come first."""
    nic, plan = replace(_NIC, first=seed), shipped_plan()
    plan = BurnPlan(cuda=replace(plan.cuda, nic=nic), cpu=replace(plan.cpu, nic=nic))
    if tier != "deep":
        return plan
    return BurnPlan(cuda=_set_sustained(plan.cuda, LONG_S), cpu=_set_sustained(plan.cpu, 10.0))


def fit(plan: BurnPlan, left_s: float, devices: Devices) -> BurnPlan:
    """Return the plan shortened to its share of the remaining time, by the estimate of each phase.

    First the sustained load gets shorter, then some NICs are skipped.
    """
    budget_s = left_s * BURN_SHARE
    return BurnPlan(
        cuda=_fit_load(plan.cuda, "cuda", budget_s, devices),
        cpu=_fit_load(plan.cpu, "cpu", budget_s, devices),
    )


def _fit_load(load: Load, kind: Kind, budget_s: float, devices: Devices) -> Load:
    over_s = sum(phases_s(load, kind, devices).values()) - budget_s
    if load.sustained is not None and over_s > 0:
        window_s, seconds = load.sustained.window_s, load.sustained.seconds
        load = _set_sustained(load, max(min(window_s, seconds), seconds - over_s))
    if load.nic is None:
        return load
    phases = phases_s(load, kind, devices)
    most_s = _NIC_MARGIN * phases.pop("nic") + load.nic.patience_s
    limit_s = max(nic_turn_s(load.nic), min(most_s, budget_s - sum(phases.values())))
    return replace(load, limit_s={**load.limit_s, "nic": limit_s})


def phases_s(load: Load, kind: Kind, devices: Devices) -> dict[str, float]:
    """Estimated seconds of each phase on a healthy node, all NICs included (durations.toml)."""
    cuda_s = open_s(devices.gpus) if kind == "cuda" else 0.0
    phase_s = duration("burn.phase_s")
    phases = {"open": duration("torch.import_s") + cuda_s}
    for name, series in (("gemm", load.gemm), ("memory", load.memory)):
        if series is not None:
            phases[name] = phase_s + _series_s(series)
    if load.integrity is not None:
        phases["integrity"] = duration("burn.integrity_s") if kind == "cuda" else phase_s
    if load.launch is not None:
        phases["launch"] = phase_s
    if load.sustained is not None:
        phases["sustained"] = phase_s + load.sustained.seconds
    if load.pcie is not None:
        copies_s = 2 * _series_s(load.pcie) + duration("burn.side_s")
        phases["pcie"] = devices.gpus * devices.sides * copies_s
    if load.p2p is not None:
        paths = devices.gpus * (devices.gpus - 1)
        phases["p2p"] = cuda_s + paths * (_series_s(load.p2p) + duration("burn.way_s"))
    if load.host is not None:
        phases["host"] = devices.sides * (phase_s + 2 * _series_s(load.host))
    if load.nic is not None:
        phases["nic"] = devices.nic_turns * nic_turn_s(load.nic)
    return phases


def open_s(gpus: int) -> float:
    """Seconds until all GPUs of a node have a CUDA context."""
    return duration("cuda.open_s") + gpus * duration("cuda.open_each_s")


def nic_turn_s(nic: Nic) -> float:
    """Seconds for all samples of one NIC."""
    return nic.samples * (nic.seconds + duration("burn.nic_start_s"))


def _series_s(series: Series) -> float:
    return series.warm_s + series.samples * series.sample_s


def _set_sustained(load: Load, seconds: float) -> Load:
    """Change the length of the sustained load, and its deadline with it."""
    if load.sustained is None:
        return load
    limits = {**load.limit_s, "sustained": load.limit_s["sustained"] + seconds}
    return replace(load, limit_s=limits, sustained=replace(load.sustained, seconds=seconds))
