"""The state of a job that hangs, its ranks, and the diagnosis."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from preflight.facts.job import Frame, GpuLook, NodeLook, RankLook, RasLook
from preflight.fleet.nodeset import clustershell
from preflight.hang.answer_text import Alternative
from preflight.hang.diagnose.places import CODE, LOCKED, OTHERS, Place, channel_words

Category = Literal[
    "progresses", "straggler", "odd_rank", "desync", "link", "dead_rank", "stopped_rank",
    "out_of_memory", "node_unreachable", "no_job", "unknown",
]  # fmt: skip
"""`odd_rank`: the others wait in a collective while one rank is elsewhere. `link`: all are in the
same collective and no data moves. `straggler`: the job moves at the pace of its slowest rank."""


class NodeState(Struct, frozen=True, kw_only=True):
    """One node of the job: its look, or the reason why there is none."""

    node: str
    look: NodeLook | None = None
    sentence: str = ""
    """Why there is no look, in the words of the `reach.*` checks; see `why`."""
    advice: str = ""
    late: bool = False
    """The node was reached, but no look arrived, usually not in time: it is up, perhaps slow."""

    @property
    def why(self) -> str:
        """Why there is no look; a saved state may have no sentence."""
        return self.sentence or "no answer"


class JobState(Struct, frozen=True, kw_only=True):
    """The state of one job at one moment."""

    nodes: tuple[NodeState, ...]
    job: str = ""
    """The name of the job, if these nodes run several; empty for the only one."""
    here: bool = False
    """The only node is this machine: no command needs its name."""
    narrowed: bool = False
    """Only some processes were examined, and of ranks without a launcher no others."""
    ras: RasLook | None = None
    """The report of NCCL's RAS service, or why there is none; None if no rank has one."""

    @property
    def looks(self) -> dict[str, NodeLook]:
        """The looks of the nodes that answered, by node."""
        return {node.node: node.look for node in self.nodes if node.look is not None}

    @property
    def unanswered(self) -> tuple[NodeState, ...]:
        """The nodes without an answer."""
        return tuple(node for node in self.nodes if node.look is None)


class PlaceRow(Struct, frozen=True, kw_only=True):
    """A row of the table: where some ranks are. The report folds equal rows."""

    ranks: tuple[int, ...]
    where: str
    """`all_reduce (train.py:41)`, or the process state where there is no stack."""
    what: str = ""
    """What they do: wait, compute, read, are stopped."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """The answer; `preflight diagnose --json` prints it as it is (docs/reference/diagnose.md)."""

    category: Category = "unknown"
    culprits: tuple[str, ...] = ()
    """`rank 17`, `node gpu003`, `gpu 1`, `path gpu001-gpu004`, `port mlx5_3/1`."""
    sentence: str
    advice: str
    line: str = ""
    """The user's line to look at: `/home/u/train.py:88 in evaluate`."""
    evidence: tuple[str, ...] = ()
    confidence: float = 0.0
    alternatives: tuple[Alternative, ...] = ()
    standings: tuple[PlaceRow, ...] = ()
    next: str = ""
    """What to check next with preflight."""
    unseen: tuple[str, ...] = ()
    """What could not be read, and how to make it readable."""


BUSY = 0.5
"""Share of a core: a main thread that uses this much computes or spins."""
IDLE = 0.05
"""Share of a core: a main thread that uses less waits for something."""
_AWAKE = 5
"""Context switches: a main thread that waits in a collective makes one, not this many."""


class RankState(Struct, frozen=True, kw_only=True):
    """One rank of the job."""

    rank: int
    node: str
    look: RankLook
    gpu_look: GpuLook | None = None
    """Its GPU, as the driver reports it."""
    place: Place | None = None
    """At the last look."""
    before: Place | None = None
    """At the first look, if there were two."""
    seen: tuple[tuple[Place, int], ...] = ()
    """(place, times) of the quick looks between the two."""
    fed: int = 0
    """Bytes received from other ranks between the looks."""

    @property
    def places(self) -> tuple[Place, ...]:
        """Its places at the two looks, the last one first."""
        return tuple(place for place in (self.place, self.before) if place is not None)

    @property
    def kind(self) -> str:
        """The kind of its place; empty if unknown."""
        return self.place.kind if self.place else ""

    @property
    def gpu(self) -> int | None:
        """The index of its GPU on its node."""
        return self.gpu_look.index if self.gpu_look else None

    @property
    def name(self) -> str:
        """`rank 17 (gpu003, GPU 1)`."""
        return f"rank {self.rank} ({self.node}{'' if self.gpu is None else f', GPU {self.gpu}'})"

    @property
    def cpu(self) -> float:
        """Share of a core that its main thread used."""
        return self.look.main_cpu_s / self.look.look_s if self.look.look_s > 0 else 0.0

    @property
    def in_kernel(self) -> bool:
        """Whether it hangs in the kernel, where no stack can be read."""
        return self.place is None and self.look.state == "disk"

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks or for its GPU."""
        place = self.place
        if place is None or self.look.state == "disk":
            return False
        if place.waits == "idle":
            return place.kind != CODE and (self.cpu < IDLE or bool(self.look.gpus))
        return place.waits == "yes"

    @property
    def steady(self) -> bool:
        """Whether two or more looks saw it in one place, and it received no data between them."""
        several = self.before is not None or bool(self.seen)
        return self.place is not None and several and not self.went_on

    @property
    def went_on(self) -> bool:
        """Whether it changed its place or received data from other ranks."""
        if self.place is None:
            return False
        before = {place.key for place, _ in self.seen} | {(self.before or self.place).key}
        return bool(self.fed) or before != {self.place.key}

    @property
    def came_through(self) -> bool:
        """Whether it was first in a collective and later elsewhere: the collective finished."""
        if self.place is None or self.before is None:
            return False
        return self.before.kind in OTHERS and self.before.key != self.place.key

    @property
    def computes(self) -> bool:
        """Whether it computes on the CPU, rather than spin until its GPU is done."""
        return self.cpu >= BUSY and not self.look.gpus

    @property
    def moved(self) -> bool:
        """Whether it moved on: other lines, bytes from other ranks, or work while it waited."""
        if self.place is None:
            return bool(self.fed)
        if self.waits:
            turns = self.kind in OTHERS and self.cpu > IDLE and self.look.switches > _AWAKE
            return self.went_on or turns
        return self.went_on or self.computes

    @property
    def activity(self) -> str:
        """What it does: `is in its DataLoader at train.py:88`."""
        if self.look.state != "disk":
            return self._doing
        channel = f" in {self.look.wait_channel}" if self.look.wait_channel else ""
        if self.place is None:
            return f"is held by the kernel (D state{channel})"
        return f"{self._doing}, held by the kernel (D state{channel})"

    @property
    def _doing(self) -> str:
        place = self.place
        if place is None:
            return "cannot be read"
        at = f" at {place.at}" if place.at else ""
        if place.kind in OTHERS:
            return f"waits in {place.where}"
        if place.kind == "backward":
            return f"{'waits' if self.waits else 'computes'} in {place.where}"
        if place.kind not in (CODE, "sleep"):
            return f"{place.words}{at}"
        inside = f"is in {place.user.function}{at}" if place.user else "runs"
        rest = channel_words(self.look.wait_channel) if self.look.state == "sleeping" else ""
        if rest == LOCKED and self.went_on:
            rest = ""  # it may be in a collective by now: its line is older than this channel
        return f"{inside}{f' and {rest}' if rest else ''}"


def busy_percents(members: Iterable[RankState]) -> dict[int, int]:
    """Percent of the time that their GPUs were busy, by rank, where it is known."""
    looks = ((member.rank, member.gpu_look) for member in members)
    percents = ((rank, look.busy_percent) for rank, look in looks if look is not None)
    return {rank: percent for rank, percent in percents if percent is not None}


_FEW = 3


def fold_ranks(ranks: Iterable[int]) -> str:
    """`0-15,18-31`."""
    return str(clustershell("RangeSet").RangeSet(",".join(map(str, ranks)) or None))


def ranks(numbers: Iterable[int]) -> str:
    """`rank 3`, or `ranks 0-2,5`."""
    distinct = sorted(set(numbers))
    return f"rank{'s' * (len(distinct) > 1)} {fold_ranks(distinct)}"


def rank_names(members: Iterable[int | RankState], nodes: Iterable[str] = ()) -> tuple[str, ...]:
    """Names for `culprits`, in order: `rank 3`, `node gpu003`."""
    numbers = sorted(entry if isinstance(entry, int) else entry.rank for entry in members)
    return (*(f"rank {number}" for number in numbers), *(f"node {node}" for node in nodes))


def describe_ranks(members: Sequence[RankState]) -> str:
    """`rank 17 (gpu003, GPU 1)`; many are folded, with their nodes if these are few."""
    if len(members) == 1:
        return members[0].name
    if len(members) <= _FEW:
        return f"{', '.join(member.name for member in members[:-1])} and {members[-1].name}"
    nodes = list(dict.fromkeys(member.node for member in members))
    where = f" ({', '.join(nodes)})" if len(nodes) <= _FEW else f" (on {len(nodes)} nodes)"
    return ranks(member.rank for member in members) + where


def describe(group: Sequence[RankState]) -> str:
    """`ranks 3,5 (gpu003) wait in all_reduce (train.py:41)`, of ranks in the same place."""
    return f"{describe_ranks(group)} {in_plural(group[0].activity, len(group))}"


def count(number: int, thing: str = "rank") -> str:
    """`1 rank`, `31 ranks`, `3 processes`."""
    plural = "es" if thing.endswith("s") else "s"
    return f"{number} {thing}{plural * (number != 1)}"


def verb(number: int, one: str, many: str) -> str:
    """Singular or plural, by the number."""
    return one if number == 1 else many


def _user_frame(members: Iterable[RankState]) -> Frame | None:
    """The user's frame of the first rank that has one."""
    users = (member.place.user for member in members if member.place is not None)
    return next(filter(None, users), None)


def lint_of(members: Iterable[RankState]) -> str:
    """The command that checks the script of the first rank with a known line."""
    user = _user_frame(members)
    return lint_command(user.file if user else "")


def lint_command(script: str) -> str:
    """`preflight lint train.py`; with the word SCRIPT if it is not known."""
    return f"preflight lint {shlex.quote(script) if script else 'SCRIPT'}"


def line_of(members: Iterable[RankState]) -> str:
    """The user's line of the first rank that has one."""
    return line_words(_user_frame(members))


def line_words(frame: Frame | None) -> str:
    """`/home/u/train.py:88 in evaluate`."""
    return f"{frame.file}:{frame.line} in {frame.function}" if frame else ""


_PLURAL = {"waits": "wait", "is": "are", "has": "have", "computes": "compute", "runs": "run"}


def in_plural(activity: str, number: int) -> str:
    """The words for what a rank does, in the plural if several do it: `are in their DataLoader`."""
    if number > 1:
        first, blank, rest = activity.partition(" ")
        rest = rest.replace(" and sleeps", " and sleep").replace(" and waits", " and wait")
        activity = _PLURAL.get(first, first) + blank + rest.replace("in its ", "in their ")
    return activity
