"""A node's results under load: its devices, its own all-reduce, NVLink to other nodes.

Every sample is kept as it came, so that a run can be judged again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from preflight.facts.basics import Count, Index, Int64, Line, wire_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.facts.model import Gpu


Kind = Literal["cuda", "cpu"]
"""`cpu`: this torch sees no GPU, and CPUs stand for the devices."""

Measure = Literal[
    "gemm_tflops", "memory_gbs", "h2d_gbs", "d2h_gbs", "p2p_gbs", "launch_us", "sustained_tflops",
    "host_copy_gbs", "host_gflops", "nic_gbits",
]  # fmt: skip
"""The unit is in the name; GB/s are 1e9 bytes. Only `launch_us` is better when it is less."""

Phase = Literal["open", "gemm", "memory", "integrity", "launch", "sustained", "pcie", "p2p"]
_Error = Annotated[str, Meta(max_length=512)]
_Name = Annotated[str, Meta(max_length=64)]
_Rate = Annotated[float, Meta(gt=0, le=1e9)]
_Share = Annotated[float, Meta(ge=0, le=1)]


class _Event(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event"):
    """One line that a node sends during its burn-in."""


class Ready(_Event, frozen=True, kw_only=True, tag="ready"):
    """The node's Python has torch, which sees `devices` devices."""

    torch: _Name
    kind: Kind
    devices: Annotated[int, Meta(ge=0, le=64)]


class NoTorch(_Event, frozen=True, kw_only=True, tag="no_torch"):
    """The node's Python has no torch, or one that cannot be loaded."""

    error: _Error


class Busy(_Event, frozen=True, kw_only=True, tag="busy"):
    """Another run measures this node; two at once would disturb each other."""

    error: _Error


class Step(_Event, frozen=True, kw_only=True, tag="step"):
    """The burn-in begins a phase, after `done` of all `of` phases."""

    phase: _Name
    done: Index
    of: Index


class Opened(_Event, frozen=True, kw_only=True, tag="opened"):
    """A device came up."""

    device: Index
    name: Line
    bus_id: Line = ""
    numa: Int64 | None = None


class Reading(_Event, frozen=True, kw_only=True, tag="reading"):
    """One series of samples: of a device, between two, with one NUMA node, or of a NIC."""

    measure: Measure
    samples: Annotated[tuple[_Rate, ...], Meta(min_length=1, max_length=2048)]
    device: Index | None = None
    to: Index | None = None
    side: Index | None = None
    name: _Name = ""
    waited: _Share = 0.0
    """Share of the time in which the process was ready to run but had no CPU."""
    threads: Index | None = None


class Proof(_Event, frozen=True, kw_only=True, tag="proof"):
    """How often a result or a memory pattern was verified, and how often it was wrong."""

    device: Index
    to: Index | None = None
    what: Literal["product", "memory", "load", "p2p"]
    rounds: Count
    wrong: Count
    """Results of a product or of the load; words of memory or of a copy."""
    first: _Error = ""
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{0,16}\Z")] = ""
    """Of every bit of the result: equal on every device that computes the product correctly."""
    size: _Name = ""


class Look(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One reading of a GPU's clocks; None for each value that NVML did not report."""

    sm_mhz: Count | None = None
    celsius: Annotated[int, Meta(ge=-273, le=1000)] | None = None
    watts: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    reasons: Annotated[tuple[_Name, ...], Meta(max_length=8)] | None = None


class Clocks(_Event, frozen=True, kw_only=True, tag="clocks"):
    """Clock readings before and during the sustained load; none without NVML."""

    device: Index
    looks: Annotated[tuple[Look, ...], Meta(max_length=2048)]


class Lost(_Event, frozen=True, kw_only=True, tag="lost"):
    """A device failed in a phase, and takes no part in later ones."""

    device: Index
    to: Index | None = None
    phase: Phase
    how: Literal["hung", "died", "error", "held"]
    """`held`: another process uses it exclusively, which is no fault of the device."""
    error: _Error
    starved: bool = False
    """The process that loaded the device mostly waited for a CPU: the device may be fine."""


class Absent(_Event, frozen=True, kw_only=True, tag="absent"):
    """A part does not exist on this node."""

    what: Literal["nic"]
    error: _Error


class Trouble(_Event, frozen=True, kw_only=True, tag="trouble"):
    """A part exists but could not be measured."""

    what: Literal["nic", "host"]
    error: _Error


class NoTime(_Event, frozen=True, kw_only=True, tag="no_time"):
    """Parts that were not measured because the burn-in's time was up."""

    what: Literal["nic"]
    names: Annotated[tuple[_Name, ...], Meta(min_length=1, max_length=256)]


class Alive(_Event, frozen=True, kw_only=True, tag="alive"):
    """No news, but the node and its connection work."""


class Done(_Event, frozen=True, kw_only=True, tag="done"):
    """The whole plan is done."""


Event = (
    Ready | NoTorch | Busy | Step | Opened | Reading | Proof | Clocks
    | Lost | Absent | Trouble | NoTime | Alive | Done
)  # fmt: skip


class Burned(Struct, frozen=True, kw_only=True):
    """Everything that one node sent, and why nothing more came."""

    ready: Ready | None = None
    opened: tuple[Opened, ...] = ()
    readings: tuple[Reading, ...] = ()
    proofs: tuple[Proof, ...] = ()
    clocks: tuple[Clocks, ...] = ()
    lost: tuple[Lost, ...] = ()
    absent: tuple[Absent, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    no_time: tuple[NoTime, ...] = ()
    done: bool = False
    left_out: str = ""
    """Why it was not loaded, where that is no fault of the node."""
    trouble: str = ""
    """Why it stopped early, or could not take part."""
    advice: str = ""
    stopped: bool = False
    """The time of the run was up, or it was interrupted."""
    seconds: float = 0.0


_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def decode_burned(document: bytes) -> Event:
    """Decode one event; WireError if it is none."""
    with wire_errors("its burn-in sent an invalid event"):
        return _DECODER.decode(document)


BurnState = Literal["not_run", "trouble", "no_cuda", "measured"]
"""`trouble`: it could not take part. `no_cuda`: it has GPUs, but torch sees none."""

Held = Literal["ok", "slow", "flaky", "starved", "unheld"]
"""`unheld`: there was nothing to compare it with. `starved`: slow, but it waited for a CPU."""


class Unit(Struct, frozen=True, kw_only=True):
    """One measured thing: a GPU, the path between two, a NUMA node, a NIC."""

    name: str
    """In the operator's words: "GPU 5", "GPU 1 to 6", "NUMA node 1"."""
    measure: Measure
    best: float
    """The best sample, in the unit of the measure."""
    typical: float
    """The median of the samples."""
    samples: int
    held: Held = "unheld"
    limit: float | None = None
    limit_origin: str = ""
    """Which number decided: "0.9 of the median of 7 others here"."""
    peers: float | None = None
    """The peers' median of their best."""
    bad: int = 0
    """Samples beyond the limit."""
    waited: float = 0.0
    cause: str = ""
    """The device at fault, if known: verdicts with the same cause are one finding."""
    remark: str = ""
    """Clocks, temperature and reasons for throttling."""


class Flaw(Struct, frozen=True, kw_only=True):
    """A device that failed, or computed wrong results."""

    name: str
    what: str
    cause: str = ""
    starved: bool = False
    held: bool = False
    """Another process used it exclusively: that is no fault of the device."""


class Throttle(Struct, frozen=True, kw_only=True):
    """Why a GPU was throttled during the sustained load, and in how many readings."""

    name: str
    reasons: tuple[str, ...]
    looks: int
    of: int
    remark: str
    cause: str


class Burn(Struct, frozen=True, kw_only=True):
    """One node's burn-in, compared with its peers."""

    state: BurnState
    kind: Kind = "cpu"
    devices: int = 0
    unseen: int = 0
    """Further GPUs of the node: they were not loaded and are not judged."""
    unplaced: int = 0
    """GPUs whose PCI address is not known: their clocks and NUMA nodes were not checked."""
    reason: str = ""
    advice: str = ""
    stopped: bool = False
    """Not measured, through no fault of the node: it is not judged."""
    units: tuple[Unit, ...] = ()
    lost: tuple[Flaw, ...] = ()
    wrong: tuple[Flaw, ...] = ()
    proofs: int = 0
    """Results that were compared bit by bit."""
    proven: int = 0
    """Devices with a complete set of proofs."""
    throttled: tuple[Throttle, ...] = ()
    clocks: int = 0
    """Devices whose clocks were read under load."""
    nic_absent: str = ""
    """Why no NIC could be measured."""
    nics_no_time: tuple[str, ...] = ()
    """NICs that were not measured because the burn-in's time was up."""
    troubles: tuple[str, ...] = ()
    """Parts that exist but could not be measured: "nic mlx5_3: ..."."""
    seconds: float = 0.0

    def of(self, *measures: Measure) -> tuple[Unit, ...]:
        """The units of these measures."""
        return tuple(unit for unit in self.units if unit.measure in measures)


InsideState = Literal[
    "one_rail", "not_run", "trouble", "measured", "hung", "no_connect", "absent", "error", "corrupt"
]
"""`one_rail`: there is nothing to measure. `trouble`: the node could not take part."""


class Inside(Struct, frozen=True, kw_only=True):
    """The all-reduce among the rails of one node, compared with its peers."""

    state: InsideState
    rails: int = 1
    backend: str = ""
    reason: str = ""
    """Why it was not measured, or what went wrong by its rails' reports."""
    stopped: bool = False
    """Not measured, through no fault of the node: it is not judged."""
    way: str = ""
    """The transport that the library used: "P2P", "SHM"."""
    lacks: str = ""
    """Which rails of its group it lacks, and how that is known."""
    why: str = ""
    """What is wrong, in one sentence; "" where it is fine or cannot be judged."""
    advice: str = ""
    at_bytes: int = 0
    """The size at which bandwidth is judged: the largest that was measured."""
    busbw_gbs: float | None = None
    """Bus bandwidth of the median operation."""
    best_gbs: float | None = None
    """Bus bandwidth of the fastest operation, which is compared with the limit."""
    limit_gbs: float | None = None
    limit_origin: str = ""
    peers_gbs: float | None = None
    peers: int = 0
    """Other nodes of its group with as many rails."""
    latency_us: float | None = None
    events: int = 0
    """Operations that were intermittently slow, of `operations`."""
    operations: int = 0


class OverNvlink(Struct, frozen=True, kw_only=True):
    """One node's pairs over NVLink with its neighbours in the domain, on its worst rail."""

    state: Literal["alone", "not_run", "trouble", "measured", "broken"]
    """`alone`: no other node of its domain takes part. `broken`: no pair came to a result."""
    domain: str = ""
    nodes: int = 1
    """How many nodes of the domain take part."""
    rails: int = 0
    rail: int = 0
    """The rail on which it is slowest, or broken."""
    partners: tuple[str, ...] = ()
    """The nodes with which it was measured there."""
    reason: str = ""
    """Why it was not measured."""
    stopped: bool = False
    """Not measured, through no fault of the node: it is not judged."""
    way: str = ""
    """The transport that NCCL used: "P2P MNNVL"."""
    at_bytes: int = 0
    """The size at which bandwidth is judged: the largest that was measured."""
    best_gbs: float | None = None
    """Bandwidth of the fastest operation with the faster partner."""
    peers_gbs: float | None = None
    """The median of `best_gbs` on all rails of the other nodes."""
    why: str = ""
    """What is wrong, in one sentence."""
    advice: str = ""
    proven: bool = False
    """Whether its partners are fine with other nodes: then this node is at fault."""


def nvlink_domain(gpus: Sequence[Gpu]) -> str | None:
    """The NVLink domain of all GPUs of a node; None without one, or where they differ."""
    domains = {gpu.health.fabric_domain if gpu.health is not None else None for gpu in gpus}
    return domains.pop() if len(domains) == 1 else None
