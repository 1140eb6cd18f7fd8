"""A node as a check sees it: what was promised, what it said, and what its peers said.

The rule is nvidia-smi's legend: PIX crosses at most one PCIe bridge or switch, PXB several, PHB
the host bridge they share, NODE two host bridges of one NUMA node, SYS the link between sockets.
A switch shows in sysfs as an upstream and a downstream port, so paths that part one port above
the device still meet in one switch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from msgspec import Struct

from preflight.core.remote_command import Step
from preflight.core.thresholds import SHIPPED, Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from preflight.facts.burn import Burn, Inside, OverNvlink
    from preflight.facts.model import Attempt, Facts, Ports
    from preflight.fleet.model import Job, Promise


class Shortfall(Struct, frozen=True):
    """What a node that answers lacks all the same: some of the processes that the job has there."""

    sentence: str
    advice: str


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
    limit: Thresholds = SHIPPED
    """The numbers that it is judged by: `node.limit("zombie_age_s")`."""

    @property
    def environ(self) -> Mapping[str, str] | None:
        """The job's environment on this node; None when no source for it is known."""
        return self.job.environ_of(self.name)


PEERS_T = TypeVar("PEERS_T")


def decided(usual: Majority[PEERS_T] | None) -> Majority[PEERS_T] | None:
    """The majority, if it is one that a node can be odd against."""
    return usual if usual is not None and usual.decides else None


def most(values: Iterable[PEERS_T], least: int = 1) -> PEERS_T | None:
    """What more than half of them, and at least so many, share."""
    counts = Counter(values)
    value, votes = counts.most_common(1)[0] if counts else (None, 0)
    return value if votes >= least and 2 * votes > counts.total() else None


def others(usual: Majority[PEERS_T], what: str) -> str:
    """12 of 13 nodes of its group have WHAT."""
    return f"{usual.votes} of {usual.of} nodes of its group have {what}"


Interface = IPv4Interface | IPv6Interface


@lru_cache(maxsize=4096)  # every node of a fleet names the same few over and over
def parsed(text: str) -> Interface | None:
    """An address with or without the length of its network; None for anything else."""
    try:
        return ip_interface(text)
    except ValueError:
        return None


def is_loopback(text: str) -> bool:
    """Whether only this machine itself is there: 127.0.1.1, ::1."""
    found = parsed(text)
    return found is not None and found.ip.is_loopback


def family(text: str) -> int:
    """4 or 6; 0 for what is no address."""
    found = parsed(text)
    return 0 if found is None else found.version


def addresses_of(facts: Facts) -> set[str]:
    """All addresses of a node but its loopback's."""
    its = (each.partition("/")[0] for one in facts.interfaces for each in one.addresses)
    return {each for each in its if not is_loopback(each)}


Distance = Literal["PIX", "PXB", "PHB", "NODE", "SYS", "unknown"]

DISTANCES: Final[tuple[Distance, ...]] = ("PIX", "PXB", "PHB", "NODE", "SYS", "unknown")
"""Near to far."""

_ONE_SWITCH: Final = 2
"""Path elements below the meeting point that one switch accounts for: its port, the device."""


def pci_distance(
    a: Sequence[str] | None, b: Sequence[str] | None, numa_a: int | None, numa_b: int | None
) -> Distance:
    """Distance of two devices from their sysfs paths (root complex first) and NUMA nodes."""
    if not a or not b:
        return "unknown"
    shared = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        shared += 1
    if shared == 0:
        if numa_a is None or numa_b is None:
            return "unknown"
        return "NODE" if numa_a == numa_b else "SYS"
    if shared == 1:
        return "PHB"
    return "PIX" if max(len(a), len(b)) - shared <= _ONE_SWITCH else "PXB"
