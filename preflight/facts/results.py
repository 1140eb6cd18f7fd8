"""What was measured on a node: its devices under load, its own all-reduce, NVLink to others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.facts.burn import Kind, Measure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.facts.model import Gpu


BurnState = Literal["not_run", "trouble", "no_cuda", "measured"]
"""`trouble`: it should have taken part and could not. `no_cuda`: it has GPUs that torch does not
see."""

Held = Literal["ok", "slow", "flaky", "starved", "unheld"]
"""`unheld`: there was nothing to hold it against. `starved`: slow, but it waited for a CPU."""


class Unit(Struct, frozen=True, kw_only=True):
    """One thing that was measured: a GPU, a way between two, a side of the host, a NIC."""

    name: str
    """In the operator's words: "GPU 5", "GPU 1 to 6", "NUMA node 1"."""
    measure: Measure
    best: float
    """Of its samples, in the unit of the measure."""
    typical: float
    """Their median."""
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
    """The device at fault, where it is one: verdicts with the same one are one finding."""
    remark: str = ""
    """What else is known of it: clocks, heat, what holds them down."""


class Flaw(Struct, frozen=True, kw_only=True):
    """A device that did not come through, or computed wrong."""

    name: str
    what: str
    cause: str = ""
    starved: bool = False
    held: bool = False
    """Another process had it to itself: that is no fault of the device."""


class Throttle(Struct, frozen=True, kw_only=True):
    """What held a GPU's clocks down during the sustained load, and how often it was seen."""

    name: str
    reasons: tuple[str, ...]
    looks: int
    of: int
    remark: str
    cause: str


class Burn(Struct, frozen=True, kw_only=True):
    """One node's burn-in, held against its peers."""

    state: BurnState
    kind: Kind = "cpu"
    devices: int = 0
    unseen: int = 0
    """GPUs that the node has beyond those: they were not loaded, and nothing is said of them."""
    unplaced: int = 0
    """GPUs of which nobody told the PCI address: their clocks and NUMA nodes were not checked."""
    reason: str = ""
    advice: str = ""
    stopped: bool = False
    """Not measured for what is no fault of the node's: it is not judged."""
    units: tuple[Unit, ...] = ()
    lost: tuple[Flaw, ...] = ()
    wrong: tuple[Flaw, ...] = ()
    proofs: int = 0
    """Results that were compared to the bit."""
    proven: int = 0
    """Devices with a whole set of proofs."""
    throttled: tuple[Throttle, ...] = ()
    clocks: int = 0
    """Devices whose clocks were told under load."""
    nic_absent: str = ""
    """Why no NIC was measured, where none could be."""
    nics_no_time: tuple[str, ...] = ()
    """NICs that had no turn, as the time of the burn-in was up."""
    troubles: tuple[str, ...] = ()
    """What could not be measured though it is there: "nic mlx5_3: ..."."""
    seconds: float = 0.0

    def of(self, *measures: Measure) -> tuple[Unit, ...]:
        """The units of these measures."""
        return tuple(unit for unit in self.units if unit.measure in measures)


InsideState = Literal[
    "one_rail", "not_run", "trouble", "measured", "hung", "no_connect", "absent", "error", "corrupt"
]
"""`one_rail`: there is nothing to measure. `trouble`: it should have taken part and could not."""


class Inside(Struct, frozen=True, kw_only=True):
    """The all-reduce among the rails of one node, held against its peers."""

    state: InsideState
    rails: int = 1
    backend: str = ""
    reason: str = ""
    """Why it was not measured, or what its rails said went wrong."""
    stopped: bool = False
    """Not measured for what is no fault of the node's: it is not judged."""
    way: str = ""
    """What carried it, as the library says: "P2P", "SHM"."""
    lacks: str = ""
    """Which rails it lacks that its group has, and by what that is known."""
    why: str = ""
    """What is wrong, in one sentence; nothing where it is fine or cannot be judged."""
    advice: str = ""
    at_bytes: int = 0
    """The size at which bandwidth is judged: the largest that was measured."""
    busbw_gbs: float | None = None
    """Of the median operation."""
    best_gbs: float | None = None
    """Of the fastest, which is what is held against the limit."""
    limit_gbs: float | None = None
    limit_origin: str = ""
    peers_gbs: float | None = None
    peers: int = 0
    """Other nodes of its group with as many rails."""
    latency_us: float | None = None
    events: int = 0
    """Of what comes and goes: how many operations, out of how many."""
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
    """On which it is slowest, or broken."""
    partners: tuple[str, ...] = ()
    """With whom it was measured there."""
    reason: str = ""
    """Why it was not measured."""
    stopped: bool = False
    """Not measured for what is no fault of the node's: it is not judged."""
    way: str = ""
    """What carried it, as NCCL says: "P2P MNNVL"."""
    at_bytes: int = 0
    """The size at which bandwidth is judged: the largest that was measured."""
    best_gbs: float | None = None
    """Of the fastest operation with the faster partner."""
    peers_gbs: float | None = None
    """The median of that on all rails of the other nodes."""
    why: str = ""
    """What is wrong, in one sentence."""
    advice: str = ""
    proven: bool = False
    """Whether its partners are fine with others: then it is this node's fault."""


def nvlink_domain(gpus: Sequence[Gpu]) -> str | None:
    """The domain that all GPUs of a node are in; None without one, or where they disagree."""
    named = {gpu.health.fabric_domain if gpu.health is not None else None for gpu in gpus}
    return named.pop() if len(named) == 1 else None
