"""What a sweep measured: every pair, every size, every iteration, from both ends.

Times come rounded to hundredths of a microsecond, so that most of them have come before. A number
takes 24 bytes and each place that holds it 8 (CPython). Finding the one that is there costs more
than decoding did, hence only while nobody says anything.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from preflight.facts.basics import Whole

if TYPE_CHECKING:
    from collections.abc import Iterator


PairState = Literal["measured", "hung", "no_connect", "absent", "error", "corrupt", "not_run"]
"""`hung`: joined, then stopped. `no_connect`: the two never met. `absent`: an end had left.
`not_run`: through no fault of either."""


class Ladder(Struct, frozen=True):
    """One size of the ladder: bytes per all-reduce, warm-ups, counted iterations."""

    size_bytes: Whole
    warmup: Whole
    iterations: Whole


Phase = Literal["ladder", "soak"]
"""`ladder`: a few of each size. `soak`: one size for longer, so that rare events show."""


class Resumed(Struct, frozen=True, array_like=True):
    """The gap before that operation began so long after the end's `started_s`."""

    operation: Annotated[int, Meta(ge=0, le=10**12)]
    at_s: Annotated[float, Meta(ge=0, le=1e6)]


class Timing(Struct, frozen=True):
    """The iterations of one size as one end saw them.

    `times_us[i]`: duration of iteration i by that end's own clock. `gaps_us[i]`: time between
    the end of the previous iteration and the start of this one, there, less what checking its
    data usually takes.
    """

    size_bytes: Annotated[int, Meta(ge=1, le=1 << 50)]
    times_us: tuple[Annotated[float, Meta(ge=0, le=1e12)], ...]
    gaps_us: tuple[Annotated[float, Meta(ge=0, le=1e12)], ...]
    phase: Phase = "ladder"
    began_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """When the gap before the first counted iteration began: seconds after the end's `started_s`,
    by a steady clock of that node."""
    check_us: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    """How long checking the data between two iterations usually took: on top of each gap."""
    stopped: Literal["", "time", "spikes"] = ""
    """Why both ends left off before all iterations were done: it took too long, or (fail-fast
    `first`) its spikes condemned the pair already."""
    resumed: tuple[Resumed, ...] = ()
    """Where times, gaps and checks alone would put an operation wrongly by over 1 ms."""


class Moved(Struct, frozen=True):
    """A counter of that node that moved between the start and the end of its part in a pair."""

    name: Annotated[str, Meta(max_length=120, pattern=r"^[ -~]*\Z")]
    """"mlx5_3/1 symbol_error", "GPU 3 pcie_replay", "GPU 3 throttle hw_thermal"."""
    by: Annotated[float, Meta(ge=0, le=1e18)]
    assigned: bool = True
    """Whether it is surely this rail's. False where it may be another rail's: no PCI path tells
    which NIC is this rail's, and the library did not name the one that carried the data."""

    @property
    def proves(self) -> bool:
        """Whether it speaks against this rail; TCP's counters move on healthy machines, too."""
        return self.assigned and not self.name.startswith("tcp ")


StallKind = Literal["stopped", "host", "starved"]
"""`stopped`: the measuring process, by a signal or a debugger. `host`: the supervisor itself did
not run. `starved`: nor did it, but it waited for a CPU that others had: proves nothing."""


class Stall(Struct, frozen=True, array_like=True):
    """A time for which that node stood still, as its rail's supervisor saw it."""

    at_s: Annotated[float, Meta(ge=0, le=1e12)]
    """By the clock of `started_s`."""
    ms: Annotated[float, Meta(ge=0, le=1e9)]
    what: StallKind


class End(Struct, frozen=True):
    """One end's account of one pair on one rail in one round."""

    node: str
    state: PairState
    timings: Annotated[tuple[Timing, ...], Meta(max_length=64)] = ()
    error: str = ""
    started_s: float = 0.0
    """Wall clock of that node when it met its partner (or gave up)."""
    setup_ms: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    moved: Annotated[tuple[Moved, ...], Meta(max_length=64)] = ()
    unread: Annotated[str, Meta(max_length=512)] = ""
    """Which counters were not read, or are tied to no rail, and why; nothing where all were."""
    net: Annotated[str, Meta(max_length=120, pattern=r"^[ -~]*\Z")] = ""
    """What carried it, as the library itself says: "tcp eth0", "NET/IB mlx5_3", "NET/Socket"."""
    stepped_s: Annotated[float, Meta(ge=-1e12, le=1e12)] = 0.0
    """How far that node's wall clock was set since its pair before (durations do not go by it)."""
    stalls: Annotated[tuple[Stall, ...], Meta(max_length=256)] = ()
    """The longest ones, in time's order."""


class Meeting(Struct, frozen=True):
    """One pair of nodes on one rail in one round."""

    a: str
    b: str
    rail: Whole
    round: Whole

    @property
    def nodes(self) -> tuple[str, str]:
        """Both, the earlier in fleet order first."""
        return self.a, self.b

    @property
    def path(self) -> tuple[str, str, int]:
        """The same in whichever round."""
        return self.a, self.b, self.rail

    @property
    def turn(self) -> tuple[str, str, int, int]:
        """What tells it from all others."""
        return self.a, self.b, self.rail, self.round

    def partner(self, name: str) -> str:
        """The other end."""
        return self.a if name == self.b else self.b

    @property
    def name(self) -> str:
        """The pair as reports write it."""
        return f"{self.a}-{self.b}"


class PairSamples(Meeting, frozen=True):
    """What both ends measured; an end that never reported is None."""

    backend: str
    """"gloo" or "nccl"."""
    first: End | None
    second: End | None

    @property
    def ends(self) -> tuple[End, ...]:
        """Those that reported."""
        return tuple(end for end in (self.first, self.second) if end is not None)


class InsideSamples(Struct, frozen=True):
    """One node's own rails in one all-reduce, after the rounds: NVLink, PCIe, shared memory."""

    node: str
    backend: str
    rails: tuple[End | None, ...]
    """By number; one that never reported is None. `measured` is whoever had right data itself."""
    numbers: tuple[Whole, ...] = ()
    """The number of each rail, where some lack; else they are 0, 1, 2 ..."""

    @property
    def numbered(self) -> dict[int, End | None]:
        """By number."""
        return dict(zip(self.numbers or range(len(self.rails)), self.rails, strict=True))


class Logged(Struct, frozen=True):
    """What NCCL logged in one measuring process of one rail."""

    node: str
    rail: Whole
    text: str


class Sweep(Struct, frozen=True):
    """Everything one sweep measured, and who was left out of it and why."""

    ladder: tuple[Ladder, ...]
    rounds: tuple[tuple[tuple[str, str], ...], ...]
    pairs: tuple[PairSamples, ...]
    left_out: dict[str, str] = {}
    """Node name → why it took no part."""
    cut_off: dict[str, str] = {}
    """Of those, name → the host of the sweep's store that it could not reach: a path is bad."""
    troubles: dict[str, str] = {}
    """Node name → what happened to its agent (killed, timed out, said nothing)."""
    waited: dict[str, str] = {}
    """Node name → for whom it waited in vain; without `troubles`, nobody is proven."""
    unfinished: str = ""
    """Why it ended before all pairs had their turn (time, Ctrl-C): such pairs are `not_run`."""
    advice: dict[str, str] = {}
    """Node name → what to do about its trouble, where whoever noticed it knows."""
    seconds: float = 0.0
    seed: Whole = 0
    """Of the data's pattern and of the order of rounds: the same seed makes the same sweep."""
    leaves: dict[str, str] = {}
    """Node name → its leaf switch, where a source of topology says so."""
    retested: Whole = 0
    """Rounds from this number on are retests of suspects; 0 where there were none."""
    unsettled: tuple[tuple[str, str], ...] = ()
    """Pairs that should have been measured again, for which there was no time."""
    short: dict[str, str] = {}
    """Node name → which rails it lacks that its group has, and by what that is known."""
    inside: tuple[InsideSamples, ...] = ()
    """Of nodes with two rails or more."""
    nccl_logs: tuple[Logged, ...] = ()
    """Of a capture: in the order in which the processes ended."""
    domains: dict[str, str] = {}
    """Node name → its NVLink domain, of nodes whose GPUs NVML says are in one."""
    domain: tuple[PairSamples, ...] = ()
    """Pairs over NVLink between the nodes of a domain; their rounds are numbered by themselves."""


MOST = 1 << 15
"""Different times that are looked out for: rare ones would fill a table and seldom be met again."""


class TimeInterner:
    """The times of one sweep so far."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: dict[float, float] = {}

    def end(self, end: End) -> End:
        """An equal account, made of times that were there before where there are such."""
        return replace(end, timings=tuple(map(self._timing, end.timings)))

    def _timing(self, timing: Timing) -> Timing:
        return replace(
            timing, times_us=self._shared(timing.times_us), gaps_us=self._shared(timing.gaps_us)
        )

    def _shared(self, values: tuple[float, ...]) -> tuple[float, ...]:
        known = self._kept.setdefault if len(self._kept) < self._most else self._kept.get
        return tuple(map(known, values, values))


@contextmanager
def gc_paused() -> Iterator[None]:
    """Spare Python the search for cycles: a fifth of the decoding of 4,096 nodes, and finds none.

    What is not needed any more is freed all the same, when the last reference to it is gone.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
