"""What is asked of a job that hangs, and what is said of it in the end."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.facts.job import GpuLook, NodeLook, RankLook
from preflight.fleet.nodeset import clustershell
from preflight.hang.answer_text import Alternative
from preflight.hang.diagnose.places import CODE, OTHERS, Place, channel_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from preflight.facts.job import Frame


Category = Literal[
    "progresses", "straggler", "odd_rank", "desync", "link", "dead_rank", "stopped_rank",
    "out_of_memory", "node_unreachable", "no_job", "unknown",
]  # fmt: skip
"""`odd_rank`: the others wait in a collective while it is elsewhere. `link`: all are in the same
one and nothing moves. `straggler`: everything moves, at the pace of the slowest."""


class NodeState(Struct, frozen=True, kw_only=True):
    """One node of the job: what it showed, or why it did not."""

    node: str
    look: NodeLook | None = None
    sentence: str = ""
    """Why there is no look: as the `reach.*` checks say it."""
    advice: str = ""
    late: bool = False
    """It was reached, and what it was to show did not come in time: it is there, and slow."""


class JobState(Struct, frozen=True, kw_only=True):
    """All that is known of one job at this moment."""

    nodes: tuple[NodeState, ...]
    job: str = ""
    """Which of several jobs on these nodes is meant; empty: the only one."""
    here: bool = False
    """The only node is the machine that asks: no command needs its name."""

    @property
    def looks(self) -> dict[str, NodeLook]:
        """What the nodes that answered showed, by node."""
        return {one.node: one.look for one in self.nodes if one.look is not None}


class Standing(Struct, frozen=True, kw_only=True):
    """Where a rank stands, in a row of the table: equal ones are folded by the report."""

    ranks: tuple[int, ...]
    where: str
    """`all_reduce (train.py:41)`, or the process state where there is no stack."""
    what: str = ""
    """What it does: waits, computes, reads, is stopped."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """The answer; `preflight diagnose --json` prints it as it is (docs/diagnose.md)."""

    category: Category = "unknown"
    culprits: tuple[str, ...] = ()
    """`rank 17`, `node gpu003`, `gpu 1`, `path gpu001-gpu004`, `port mlx5_3/1`."""
    sentence: str
    advice: str
    line: str = ""
    """The line of the user's code that matters: `/home/u/train.py:88 in evaluate`."""
    evidence: tuple[str, ...] = ()
    confidence: float = 0.0
    alternatives: tuple[Alternative, ...] = ()
    standings: tuple[Standing, ...] = ()
    next: str = ""
    """What to check next with preflight."""
    unseen: tuple[str, ...] = ()
    """What could not be looked at, and what would let it be."""


BUSY = 0.5
"""Of a core: a main thread that uses so much computes, or spins."""
IDLE = 0.05
"""Of a core: one that uses less waits for something."""


class Seat(Struct, frozen=True, kw_only=True):
    """One rank of the job."""

    rank: int
    node: str
    look: RankLook
    gpu_look: GpuLook | None = None
    """What the driver tells of its GPU."""
    place: Place | None = None
    """At the last look."""
    before: Place | None = None
    """At the first, where there were two."""
    seen: tuple[tuple[Place, int], ...] = ()
    """Of many quick looks between the two: where, and how often."""
    fed: int = 0
    """Bytes that came from other ranks between the looks."""

    @property
    def kind(self) -> str:
        """What it is at; empty where its place is not known."""
        return self.place.kind if self.place else ""

    @property
    def gpu(self) -> int | None:
        """The index of its GPU on its node."""
        return self.gpu_look.index if self.gpu_look else None

    @property
    def busy_percent(self) -> int | None:
        """Of the time that its GPU was busy."""
        return self.gpu_look.busy_percent if self.gpu_look else None

    @property
    def name(self) -> str:
        """`rank 17 (gpu003, GPU 1)`."""
        return f"rank {self.rank} ({self.node}{'' if self.gpu is None else f', GPU {self.gpu}'})"

    @property
    def cpu(self) -> float:
        """Of a core, what its main thread used."""
        return self.look.main_cpu_s / self.look.look_s if self.look.look_s > 0 else 0.0

    @property
    def waits(self) -> bool:
        """Whether it stands where others are waited for: other ranks, or its own GPU."""
        place = self.place
        if place is None or self.look.state == "disk":
            return False
        if place.waits == "idle":
            return place.kind != CODE and (self.cpu < IDLE or bool(self.look.gpus))
        return place.waits == "yes"

    @property
    def steady(self) -> bool:
        """Two looks or more saw it in one place only, and nothing came in meanwhile."""
        if self.place is None or self.fed or (self.before is None and not self.seen):
            return False
        others = {one.key for one, _ in self.seen} | {(self.before or self.place).key}
        return others == {self.place.key}

    @property
    def went_on(self) -> bool:
        """It was seen in another place meanwhile, or other ranks' data came in."""
        if self.place is None:
            return False
        before = {one.key for one, _ in self.seen} | {(self.before or self.place).key}
        return bool(self.fed) or before != {self.place.key}

    @property
    def came_through(self) -> bool:
        """It was met in a collective, and later elsewhere: what it waited for has come."""
        if self.place is None or self.before is None:
            return False
        return self.before.kind in OTHERS and self.before.key != self.place.key

    @property
    def computes(self) -> bool:
        """It works by itself: not a GPU's program that spins until its GPU is done."""
        return self.cpu >= BUSY and not self.look.gpus


_FEW = 3


def folded(ranks: Iterable[int]) -> str:
    """`0-15,18-31`."""
    return str(clustershell("RangeSet").RangeSet(",".join(map(str, ranks)) or None))


def ranks(some: Iterable[int]) -> str:
    """`rank 3`, or `ranks 0-2,5`."""
    every = sorted(set(some))
    return f"rank{'s' * (len(every) > 1)} {folded(every)}"


def rank_names(seats: Iterable[Seat]) -> tuple[str, ...]:
    """As culprits are named: `rank 3`."""
    return tuple(f"rank {one.rank}" for one in seats)


def named(seats: Sequence[Seat]) -> str:
    """`rank 17 (gpu003, GPU 1)`; many are folded, with their nodes where these are few."""
    if len(seats) == 1:
        return seats[0].name
    if len(seats) <= _FEW:
        return " and ".join(filter(None, (", ".join(s.name for s in seats[:-1]), seats[-1].name)))
    nodes = list(dict.fromkeys(one.node for one in seats))
    on = f" ({', '.join(nodes)})" if len(nodes) <= _FEW else f" (on {len(nodes)} nodes)"
    return ranks(one.rank for one in seats) + on


def count(number: int, thing: str = "rank") -> str:
    """`1 rank`, `31 ranks`, `3 processes`."""
    plural = "es" if thing.endswith("s") else "s"
    return f"{number} {thing}{plural * (number != 1)}"


def verb(number: int, one: str, many: str) -> str:
    """The form that fits the number."""
    return one if number == 1 else many


def _user_frame(seats: Iterable[Seat]) -> Frame | None:
    """The line of the user's code of the first that has one."""
    places = (one.place for one in seats)
    return next((one.user for one in places if one is not None and one.user is not None), None)


def lint_of(seats: Iterable[Seat]) -> str:
    """The command that reads the script of the first whose line is known."""
    user = _user_frame(seats)
    return f"preflight lint {shlex.quote(user.file) if user else 'SCRIPT'}"


def line_of(seats: Iterable[Seat]) -> str:
    """The user's line of the first that has one."""
    return line_words(_user_frame(seats))


def line_words(frame: Frame | None) -> str:
    """`/home/u/train.py:88 in evaluate`."""
    return f"{frame.file}:{frame.line} in {frame.function}" if frame else ""


_MANY = {"waits": "wait", "is": "are", "has": "have", "computes": "compute", "runs": "run"}


def doing(seat: Seat, number: int = 1) -> str:
    """`is in its DataLoader at train.py:88`, of so many ranks as stand there."""
    told = _doing(seat)
    if number > 1:
        first, blank, rest = told.partition(" ")
        rest = rest.replace(" and sleeps", " and sleep").replace(" and waits", " and wait")
        told = _MANY.get(first, first) + blank + rest.replace("in its ", "in their ")
    return told


def _doing(seat: Seat) -> str:
    if seat.look.state != "disk":
        return _at_work(seat)
    channel = f" in {seat.look.wait_channel}" if seat.look.wait_channel else ""
    if seat.place is None:
        return f"is held by the kernel (D state{channel})"
    return f"{_at_work(seat)}, held by the kernel (D state{channel})"


def _at_work(seat: Seat) -> str:
    place = seat.place
    if place is None:
        return "cannot be read"
    at = f" at {place.at}" if place.at else ""
    if place.kind in OTHERS:
        return f"waits in {place.where}"
    if place.kind == "backward":
        return f"{'waits' if seat.waits else 'computes'} in {place.where}"
    if place.kind not in (CODE, "sleep"):
        return f"{place.words}{at}"
    inside = f"is in {place.user.function}{at}" if place.user else "runs"
    rest = channel_words(seat.look.wait_channel) if seat.look.state == "sleeping" else ""
    return f"{inside}{f' and {rest}' if rest else ''}"
