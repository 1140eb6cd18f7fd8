"""A node's devices under load, as its checks see them: measured, expected, whose fault."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from preflight.facts.burned import Kind, Measure

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
