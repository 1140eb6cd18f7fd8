"""What a sweep measured: every pair, every size, every iteration, from both ends.

Times are rounded to hundredths of a microsecond, so most of them repeat. A number takes 24 bytes
and each reference to it 8 (CPython). Finding an equal one costs more than decoding, so it is done
only while no events arrive.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from preflight.facts.basics import Count, Seconds

PairState = Literal["measured", "hung", "no_connect", "absent", "error", "corrupt", "not_run"]
"""`hung`: joined, then stopped. `no_connect`: the two never met. `absent`: an end had left.
`not_run`: through no fault of either."""


Backend = Literal["gloo", "nccl"]
Bytes = Annotated[int, Meta(ge=1, le=1 << 50)]
Times = Annotated[int, Meta(ge=1, le=10**12)]
"""How often something was done."""
Micros = Annotated[float, Meta(ge=0, le=1e12)]
Rail = Annotated[int, Meta(ge=0, le=1024)]
Round = Annotated[int, Meta(ge=0, le=1 << 16)]


class Rung(Struct, frozen=True):
    """One size of the ladder: bytes per all-reduce, warm-ups, counted iterations."""

    size_bytes: Bytes
    warmup: Count
    iterations: Times


Phase = Literal["ladder", "soak"]
"""`ladder`: a few iterations of each size. `soak`: one size for longer, to show rare events."""


class Resumed(Struct, frozen=True, array_like=True):
    """When the gap before an operation began: seconds after the end's `started_s`."""

    operation: Annotated[int, Meta(ge=0, le=10**12)]
    at_s: Annotated[float, Meta(ge=0, le=1e6)]


class Timing(Struct, frozen=True):
    """The iterations of one size as one end measured them.

    `times_us[i]`: duration of iteration i by that end's own clock. `gaps_us[i]`: time between
    the end of the previous iteration and the start of this one, there, less what checking its
    data usually takes.
    """

    size_bytes: Bytes
    times_us: Annotated[tuple[Micros, ...], Meta(min_length=1)]
    gaps_us: tuple[Micros, ...]
    phase: Phase = "ladder"
    began_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """When the gap before the first counted iteration began: seconds after the end's `started_s`,
    by a steady clock of that node."""
    check_us: Micros = 0.0
    """How long checking the data between two iterations usually took: on top of each gap."""
    stopped: Literal["", "time", "spikes"] = ""
    """Why both ends stopped before all iterations were done: it took too long, or (fail-fast
    `first`) its spikes already proved the pair bad."""
    resumed: tuple[Resumed, ...] = ()
    """Operations that times, gaps and checks alone would misplace by over 1 ms."""


class Moved(Struct, frozen=True):
    """A counter of that node that moved between the start and the end of its part in a pair."""

    name: Annotated[str, Meta(max_length=120, pattern=r"^[ -~]*\Z")]
    """"mlx5_3/1 symbol_error", "GPU 3 pcie_replay", "GPU 3 throttle hw_thermal"."""
    by: Annotated[float, Meta(ge=0, le=1e18)]
    assigned: bool = True
    """Whether it is surely this rail's. False if it may be another rail's: no PCI path shows which
    NIC is this rail's, and the library did not name the one that carried the data."""

    @property
    def proves(self) -> bool:
        """Whether it counts against this rail; TCP's counters also move on good machines."""
        return self.assigned and not self.name.startswith("tcp ")


StallKind = Literal["stopped", "host", "starved"]
"""`stopped`: the measuring process, by a signal or a debugger. `host`: the supervisor itself did
not run. `starved`: nor did it, but it waited for a CPU that others had: proves nothing."""


class Stall(Struct, frozen=True, array_like=True):
    """A time for which that node stood still, as its rail's supervisor measured it."""

    at_s: Seconds
    """By the clock of `started_s`."""
    ms: Annotated[float, Meta(ge=0, le=1e9)]
    what: StallKind


class End(Struct, frozen=True):
    """One end's account of one pair on one rail in one round."""

    node: str
    state: PairState
    timings: Annotated[tuple[Timing, ...], Meta(max_length=64)] = ()
    error: str = ""
    started_s: Seconds = 0.0
    """Wall clock of that node when it connected to its partner (or gave up)."""
    setup_ms: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    moved: Annotated[tuple[Moved, ...], Meta(max_length=64)] = ()
    unread: Annotated[str, Meta(max_length=512)] = ""
    """Which counters were not read, or belong to no rail, and why; "" if all were."""
    net: Annotated[str, Meta(max_length=120, pattern=r"^[ -~]*\Z")] = ""
    """What carried its data, from the library: "tcp eth0", "NET/IB mlx5_3", "NET/Socket"."""
    stepped_s: Annotated[float, Meta(ge=-1e12, le=1e12)] = 0.0
    """How far that node's wall clock was set since its previous pair (durations do not use it)."""
    stalls: Annotated[tuple[Stall, ...], Meta(max_length=256)] = ()
    """The longest standstills, in order of time."""


MeetingKey = tuple[str, str, int, int]
"""a, b, rail, round."""


class Meeting(Struct, frozen=True):
    """One pair of nodes on one rail in one round."""

    a: str
    b: str
    rail: Rail
    round: Round

    @property
    def nodes(self) -> tuple[str, str]:
        """Both nodes, the earlier in fleet order first."""
        return self.a, self.b

    @property
    def path(self) -> tuple[str, str, int]:
        """Nodes and rail, without the round."""
        return self.a, self.b, self.rail

    @property
    def key(self) -> MeetingKey:
        """Nodes, rail and round, which identify it."""
        return self.a, self.b, self.rail, self.round

    def partner(self, name: str) -> str:
        """The other end."""
        return self.a if name == self.b else self.b

    @property
    def name(self) -> str:
        """The pair's name in reports."""
        return f"{self.a}-{self.b}"


class PairSamples(Meeting, frozen=True):
    """What both ends measured; an end that never reported is None."""

    backend: Backend
    first: End | None
    second: End | None

    @property
    def ends(self) -> tuple[End, ...]:
        """The ends that reported."""
        return tuple(end for end in (self.first, self.second) if end is not None)


class InsideSamples(Struct, frozen=True):
    """One node's rails in one all-reduce, after the rounds: NVLink, PCIe, shared memory."""

    node: str
    backend: Backend
    rails: tuple[End | None, ...]
    """By number; None if a rail never reported. A rail is `measured` if its own data was right."""
    numbers: tuple[Rail, ...] = ()
    """The number of each rail, if some are missing; else they are 0, 1, 2 ..."""

    @property
    def numbered(self) -> dict[int, End | None]:
        """Return the rails by number."""
        return dict(zip(self.numbers or range(len(self.rails)), self.rails, strict=True))


class NcclLogText(Struct, frozen=True):
    """NCCL's log of one measuring process of one rail."""

    node: str
    rail: Rail
    text: str


class Sweep(Struct, frozen=True):
    """All that one sweep measured, and which nodes were left out and why."""

    ladder: tuple[Rung, ...]
    rounds: tuple[tuple[tuple[str, str], ...], ...]
    pairs: tuple[PairSamples, ...]
    left_out: dict[str, str] = {}
    """Node name → why it took no part."""
    cut_off: dict[str, str] = {}
    """Of those, name → the store's host that it could not reach: a path is bad."""
    troubles: dict[str, str] = {}
    """Node name → what happened to its agent (killed, timed out, sent nothing)."""
    waited: dict[str, str] = {}
    """Node name → the nodes it waited for in vain; without `troubles` no culprit is proven."""
    unfinished: str = ""
    """Why it ended before all pairs had their turn (time, Ctrl-C): such pairs are `not_run`."""
    advice: dict[str, str] = {}
    """Node name → what to do about its trouble, if known."""
    seconds: float = 0.0
    seed: Count = 0
    """Of the data pattern and the order of rounds: the same seed makes the same sweep."""
    leaves: dict[str, str] = {}
    """Node name → its leaf switch, if a topology source names it."""
    retested: Round = 0
    """Rounds from this number on are retests of suspects; 0 if there were none."""
    unsettled: tuple[tuple[str, str], ...] = ()
    """Pairs that should have been retested and were not, for lack of time."""
    short: dict[str, str] = {}
    """Node name → which rails of its group it lacks, and how that is known."""
    inside: tuple[InsideSamples, ...] = ()
    """The all-reduce inside nodes with two rails or more."""
    nccl_logs: tuple[NcclLogText, ...] = ()
    """For a capture, in the order in which the processes ended."""
    domains: dict[str, str] = {}
    """Node name → its NVLink domain, for nodes whose GPUs are in one according to NVML."""
    domain: tuple[PairSamples, ...] = ()
    """Pairs over NVLink between the nodes of a domain; their rounds have their own numbers."""


MOST_TIMES = 1 << 15
"""Most different times in the table: rare ones would fill it and seldom repeat."""


class TimeInterner:
    """Shares equal times of one sweep, to save memory."""

    def __init__(self, most: int = MOST_TIMES) -> None:
        self._most = most
        self._shared: dict[float, float] = {}

    def end(self, end: End) -> End:
        """Return an equal account that shares times seen before."""
        timings = (
            replace(each, times_us=self._share(each.times_us), gaps_us=self._share(each.gaps_us))
            for each in end.timings
        )
        return replace(end, timings=tuple(timings))

    def _share(self, values: tuple[float, ...]) -> tuple[float, ...]:
        lookup = self._shared.setdefault if len(self._shared) < self._most else self._shared.get
        return tuple(map(lookup, values, values))


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the search for cycles: it takes a fifth of decoding 4,096 nodes, and finds none.

    Objects are still freed when their last reference is gone.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
