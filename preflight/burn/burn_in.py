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

MOST = 20_000
"""Events of one node: 64 GPUs have 4,032 paths between them, each with a reading and a proof."""

MORE_TIME = "give more: --preflight-budget=SECONDS"
_NO_TORCH = "name the job's Python with --preflight-python"


class Collected:
    """The events that a node has sent so far."""

    def __init__(self) -> None:
        self.step: Step | None = None
        self.done = False
        self.busy = ""
        self.no_torch = ""
        self._ready: Ready | None = None
        self._kept: list[Event] = []
        self._seen: set[tuple[object, ...]] = set()

    def take(self, event: Event) -> None:
        """Keep an event; WireError if it came before, or names a device that the node lacks."""
        if len(self._kept) >= MOST:
            raise WireError(f"its burn-in sent more than {MOST:,} events")
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
            self._kept.append(event)

    def result(
        self, *, trouble: str = "", advice: str = "", stopped: bool = False, seconds: float = 0.0
    ) -> Burned:
        """Return everything that came, and why nothing more did."""
        if self.no_torch:
            trouble, advice = f"no usable torch in its Python: {self.no_torch}", _NO_TORCH
        return Burned(
            ready=self._ready,
            opened=self._of(Opened),
            readings=self._of(Reading),
            proofs=self._of(Proof),
            clocks=self._of(Clocks),
            lost=self._of(Lost),
            absent=self._of(Absent),
            troubles=self._of(Trouble),
            no_time=self._of(NoTime),
            done=self.done,
            left_out=f"busy: {self.busy}" if self.busy else "",
            trouble=trouble,
            advice=advice,
            stopped=stopped,
            seconds=round(seconds, 3),
        )

    def _of(self, kind: type[T]) -> tuple[T, ...]:
        return tuple(event for event in self._kept if isinstance(event, kind))

    def _is_unexpected(self, event: Event) -> bool:
        if isinstance(event, Ready):
            return self._ready is not None
        devices = self._ready.devices if self._ready is not None else 0
        ends = (getattr(event, "device", None), getattr(event, "to", None))
        if any(end is not None and end >= devices for end in ends):
            return True
        if isinstance(event, Reading):
            key: tuple[object, ...] = ("reading", event.measure, *ends, event.side, event.name)
        elif isinstance(event, Proof):
            key = ("proof", event.what, *ends)
        elif isinstance(event, Opened | Clocks | NoTime):
            key = (type(event).__name__, *ends)
        else:
            return False
        repeated = key in self._seen
        self._seen.add(key)
        return repeated


def no_time_lines(fleet: Mapping[str, Burned]) -> Iterator[str]:
    """Parts that were not measured: "h[1-2]: no time for the loopback of 4 NICs, ..."."""
    alike = grouped((part.names, node) for node, burned in fleet.items() for part in burned.no_time)
    for names, nodes in alike.items():
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

    def of(self, kind: Kind) -> Load:
        """The half for one kind of device."""
        return self.cuda if kind == "cuda" else self.cpu


_NIC = Nic(samples=2, seconds=1, bytes=65536, patience_s=10)


@cache
def shipped() -> BurnPlan:
    """The parts of plan.toml, without NICs."""
    return msgspec.toml.decode(Path(__file__).with_name("plan.toml").read_bytes(), type=BurnPlan)


LONG_S = 300.0
"""Length of the sustained load in tier deep: a heat sink takes minutes to warm up."""

SHARE = 0.6
"""Share of the remaining time that a burn-in may take: the sweep comes after it."""

_TIMES = 2
"""The NICs' part may take this multiple of its estimate, if time allows."""


class Devices(Struct, frozen=True, kw_only=True):
    """How many devices a burn-in measures on a node; for several nodes, the maximum of each."""

    gpus: int = 8
    """Or CPUs in their place."""
    sides: int = 2
    """NUMA nodes."""
    nic_turns: int = 4
    """NICs on the NUMA node that has most of them: they are measured one after another."""


def devices(facts: Iterable[Facts], slots: int) -> Devices:
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
    nic, plan = replace(_NIC, first=seed), shipped()
    plan = BurnPlan(cuda=replace(plan.cuda, nic=nic), cpu=replace(plan.cpu, nic=nic))
    return sustained(plan, LONG_S, cpu_s=10.0) if tier == "deep" else plan


def sustained(plan: BurnPlan, gpu_s: float, cpu_s: float) -> BurnPlan:
    """Return the plan with another length of the sustained load."""
    return BurnPlan(cuda=_lasting(plan.cuda, gpu_s), cpu=_lasting(plan.cpu, cpu_s))


def fitting(plan: BurnPlan, left_s: float, has: Devices) -> BurnPlan:
    """Return the plan shortened to its share of the remaining time, by the estimate of each phase.

    First the sustained load gets shorter, then some NICs are skipped.
    """
    room_s = left_s * SHARE
    return BurnPlan(
        cuda=_fitting(plan.cuda, "cuda", room_s, has), cpu=_fitting(plan.cpu, "cpu", room_s, has)
    )


def _fitting(load: Load, kind: Kind, room_s: float, has: Devices) -> Load:
    over_s = sum(phases_s(load, kind, has).values()) - room_s
    if load.sustained is not None and over_s > 0:
        window_s, seconds = load.sustained.window_s, load.sustained.seconds
        load = _lasting(load, max(min(window_s, seconds), seconds - over_s))
    if load.nic is None:
        return load
    phases = phases_s(load, kind, has)
    need_s = phases.pop("nic")
    left_s = room_s - sum(phases.values())
    most_s = _TIMES * need_s + load.nic.patience_s
    limit_s = max(nic_turn_s(load.nic), min(most_s, left_s))
    return replace(load, limit_s={**load.limit_s, "nic": limit_s})


def phases_s(load: Load, kind: Kind, has: Devices) -> dict[str, float]:
    """Estimated seconds of each phase on a healthy node, all NICs included (durations.toml)."""
    cuda_s = open_s(has.gpus) if kind == "cuda" else 0.0
    each_s = duration("burn.phase_s")
    phases = {"open": duration("torch.import_s") + cuda_s}
    for name, series in (("gemm", load.gemm), ("memory", load.memory)):
        if series is not None:
            phases[name] = each_s + _series_s(series)
    if load.integrity is not None:
        phases["integrity"] = duration("burn.integrity_s") if kind == "cuda" else each_s
    if load.launch is not None:
        phases["launch"] = each_s
    if load.sustained is not None:
        phases["sustained"] = each_s + load.sustained.seconds
    if load.pcie is not None:
        copies_s = 2 * _series_s(load.pcie) + duration("burn.side_s")
        phases["pcie"] = has.gpus * has.sides * copies_s
    if load.p2p is not None:
        paths = has.gpus * (has.gpus - 1)
        phases["p2p"] = cuda_s + paths * (_series_s(load.p2p) + duration("burn.way_s"))
    if load.host is not None:
        phases["host"] = has.sides * (each_s + 2 * _series_s(load.host))
    if load.nic is not None:
        phases["nic"] = has.nic_turns * nic_turn_s(load.nic)
    return phases


def open_s(gpus: int) -> float:
    """Seconds until all GPUs of a node have a CUDA context."""
    return duration("cuda.open_s") + gpus * duration("cuda.open_each_s")


def nic_turn_s(nic: Nic) -> float:
    """Seconds for all samples of one NIC."""
    return nic.samples * (nic.seconds + duration("burn.nic_start_s"))


def _series_s(series: Series) -> float:
    return series.warm_s + series.samples * series.sample_s


def _lasting(load: Load, seconds: float) -> Load:
    if load.sustained is None:
        return load
    limits = {**load.limit_s, "sustained": load.limit_s["sustained"] + seconds}
    return replace(load, limit_s=limits, sustained=replace(load.sustained, seconds=seconds))
