"""A node as a check sees it: what was promised, what it said, and what its peers said."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from preflight.transport.protocol import Shortfall, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from preflight.facts.burn import Burn
    from preflight.facts.inside import Inside
    from preflight.facts.model import Facts
    from preflight.facts.nvlink_domain import OverNvlink
    from preflight.facts.ports import Attempt, Ports
    from preflight.fleet.model import Job, Promise

T = TypeVar("T")


class Clock(Struct, frozen=True):
    """How far a node's clock is ahead of this machine's, and how far off that may be.

    The node read its clock at some moment between our request and its answer, less the time that it
    worked after that: `uncertain_s` is half of what remains of the round trip.
    """

    ahead_s: float
    uncertain_s: float


class Reach(Struct, frozen=True):
    """How far we came on the way to a node: `failed` is the step that stopped us, if any."""

    transport: str
    failed: Step | None = None
    sentence: str = ""
    advice: str = ""
    seconds: float = 0.0
    blame: str = ""
    """What is at fault in the node's place: "jump host bastion"."""
    out_of_time: bool = False
    """It did not fail: the run's budget gave it less time than a node may take."""
    shortfall: Shortfall | None = None
    """What the node lacks although it answered: ranks of the job that fell silent there."""
    clock: Clock | None = None
    """How its clock stood against this machine's when it answered."""


@dataclass(frozen=True, slots=True)
class Majority(Generic[T]):
    """The value that most nodes of a group share, and how many of them do."""

    value: T
    votes: int
    of: int

    @property
    def decides(self) -> bool:
        """More than half, and at least two: else there is no majority to be odd against."""
        return self.votes > 1 and self.votes * 2 > self.of


@dataclass(frozen=True)
class Group:
    """The nodes that were promised to be alike."""

    name: str
    facts: Mapping[str, Facts]
    _votes: dict[Any, Majority[Any] | None] = field(default_factory=dict, compare=False, repr=False)
    _ranked: dict[Any, list[float]] = field(default_factory=dict, compare=False, repr=False)

    def majority(self, read: Callable[[Facts], T | None]) -> Majority[T] | None:
        """Vote over the group; nodes for which `read` gives None abstain. None if all do.

        `read` must be a named function: its vote is counted once and remembered.
        """
        if read not in self._votes:
            votes = Counter(
                value for facts in self.facts.values() if (value := read(facts)) is not None
            )
            ranked = votes.most_common(1)
            self._votes[read] = (
                Majority(ranked[0][0], ranked[0][1], votes.total()) if ranked else None
            )
        return self._votes[read]

    def middle(self, read: Callable[[Facts], float | None]) -> float | None:
        """The median over the group, the upper one of two; None where fewer than two nodes tell.

        `read` must be a named function, as above.
        """
        ranked = self._sorted(read)
        return ranked[len(ranked) // 2] if len(ranked) > 1 else None

    def at_least(self, read: Callable[[Facts], float | None], least: float) -> int:
        """How many nodes of the group have so much."""
        ranked = self._sorted(read)
        return len(ranked) - bisect_left(ranked, least)

    def _sorted(self, read: Callable[[Facts], float | None]) -> list[float]:
        if read not in self._ranked:
            told = (read(facts) for facts in self.facts.values())
            self._ranked[read] = sorted(value for value in told if value is not None)
        return self._ranked[read]


@dataclass(frozen=True, slots=True)
class Net:
    """The port stage as one node needs it: its own report and how the others fared."""

    own: Ports | None
    """None: the node took part but gave no usable answer."""
    trouble: str
    """Why `own` is None, in words; empty otherwise."""
    master: str
    is_master: bool
    master_port_origin: str
    to_me: tuple[tuple[str, Attempt], ...]
    """(from node, its attempt) for every attempt of the others that was aimed at this node."""
    others_to_master: tuple[tuple[str, Attempt], ...]
    """Every attempt at the master port in the fleet, by node."""
    others_to: Mapping[str, tuple[tuple[str, Attempt], ...]] = field(default_factory=dict)
    """(from node, its attempt) by the node that it was aimed at, for the whole fleet."""
    nodes: int = 1
    """How many nodes the run is of: one alone has no master to find."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node under judgement; the frame sees to it that a check which needs `facts` has them."""

    name: str
    promised: Promise
    reach: Reach
    facts: Facts
    group: Group
    job: Job
    net: Net
    inside: Inside | None = None
    """What its own GPUs did together in the sweep; None before, and where there was none."""
    over_nvlink: OverNvlink | None = None
    """What its GPUs did over NVLink with other nodes; None where NVML tells no NVLink domain."""
    burn: Burn | None = None
    """What its devices did under load; None before, and where there was no burn-in."""

    @property
    def environ(self) -> Mapping[str, str] | None:
        """The job's environment on this node; None when no source for it is known."""
        return self.job.environ_of(self.name)
