"""A node as a check sees it: what is expected of it, its facts, and its peers' facts.

PCI distances follow nvidia-smi's legend: PIX crosses at most one PCIe bridge or switch, PXB
several, PHB the shared host bridge, NODE two host bridges of one NUMA node, SYS the link between
sockets. In sysfs a switch is an upstream and a downstream port, so paths that part one port above
the device still meet in one switch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from msgspec import Struct

from preflight.core.remote_command import Shortfall, Step
from preflight.core.thresholds import SHIPPED, Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from preflight.facts.burn import Burn, Inside, OverNvlink
    from preflight.facts.model import Attempt, Facts, Ports
    from preflight.fleet.model import Expected, Job


T = TypeVar("T")


class Clock(Struct, frozen=True):
    """How far a node's clock is ahead of this machine's, and the uncertainty.

    The node read its clock between our request and its answer: `uncertain_s` is half of the round
    trip, less the time that the node worked after that reading.
    """

    ahead_s: float
    uncertain_s: float


class Reach(Struct, frozen=True):
    """Whether the node could be reached: `failed` is the step that failed, if any."""

    transport: str
    failed: Step | None = None
    sentence: str = ""
    advice: str = ""
    seconds: float = 0.0
    blame: str = ""
    """What is at fault instead of the node: "jump host bastion"."""
    out_of_time: bool = False
    """No failure: the run's budget gave it less time than a node may take."""
    shortfall: Shortfall | None = None
    """What the node lacks although it answered: ranks of the job that stopped answering."""
    clock: Clock | None = None
    """Its clock compared with this machine's when it answered."""


class Majority(Struct, Generic[T], frozen=True):
    """The value that most nodes of a group share, and how many of them do."""

    value: T
    votes: int
    of: int

    @property
    def decides(self) -> bool:
        """Whether more than half of the votes, and at least two, are for the value."""
        return self.votes > 1 and self.votes * 2 > self.of

    @property
    def holders(self) -> str:
        """How many nodes have the value: "12 of 13 nodes"."""
        return f"{self.votes} of {self.of} nodes"


@dataclass(frozen=True)
class Group:
    """The nodes that are expected to be alike."""

    name: str
    facts: Mapping[str, Facts]
    _votes: dict[Any, Majority[Any] | None] = field(default_factory=dict, compare=False, repr=False)
    _sorted: dict[Any, list[float]] = field(default_factory=dict, compare=False, repr=False)

    def majority(self, read: Callable[[Facts], T | None]) -> Majority[T] | None:
        """Vote over the group; nodes for which `read` gives None abstain. None if all do.

        `read` must be a named function: its vote is counted once and cached.
        """
        if read not in self._votes:
            votes = Counter(value for value in map(read, self.facts.values()) if value is not None)
            ranked = votes.most_common(1)
            self._votes[read] = Majority(*ranked[0], votes.total()) if ranked else None
        return self._votes[read]

    def median(self, read: Callable[[Facts], float | None]) -> float | None:
        """The (upper) median over the group; None where fewer than two nodes have the value.

        `read` must be a named function, as in `majority`.
        """
        ranked = self._sorted_values(read)
        return ranked[len(ranked) // 2] if len(ranked) > 1 else None

    def count_at_least(self, read: Callable[[Facts], float | None], least: float) -> int:
        """How many nodes of the group have at least `least`."""
        ranked = self._sorted_values(read)
        return len(ranked) - bisect_left(ranked, least)

    def _sorted_values(self, read: Callable[[Facts], float | None]) -> list[float]:
        if read not in self._sorted:
            values = (read(facts) for facts in self.facts.values())
            self._sorted[read] = sorted(value for value in values if value is not None)
        return self._sorted[read]


@dataclass(frozen=True, slots=True)
class Net:
    """The port stage for one node: its own report, and the other nodes' attempts."""

    own: Ports | None = None
    """None: the node took part but gave no usable answer."""
    trouble: str = ""
    """Why `own` is None; empty otherwise."""
    master: str = ""
    is_master: bool = False
    master_port_origin: str = ""
    to_me: tuple[tuple[str, Attempt], ...] = ()
    """(from node, its attempt) for every attempt to reach this node."""
    others_to_master: tuple[tuple[str, Attempt], ...] = ()
    """(from node, its attempt) for every attempt to reach the master port."""
    others_to: Mapping[str, tuple[tuple[str, Attempt], ...]] = field(default_factory=dict)
    """(from node, its attempt) by target node, for the whole fleet."""
    nodes: int = 1
    """Nodes of the run: a single one has no master to find."""


@dataclass(frozen=True, slots=True)
class Node:
    """The node that a check judges. A check that needs `facts` runs only where there are some."""

    name: str
    expected: Expected
    reach: Reach
    facts: Facts
    group: Group
    job: Job
    net: Net
    inside: Inside | None = None
    """Its GPUs' own all-reduce in the sweep; None before the sweep, or without one."""
    over_nvlink: OverNvlink | None = None
    """Its pairs over NVLink with other nodes; None where NVML reports no NVLink domain."""
    burn: Burn | None = None
    """Its burn-in; None before the burn-in, or without one."""
    limit: Thresholds = SHIPPED
    """The limits by which it is judged: `node.limit("zombie_age_s")`."""

    @property
    def environ(self) -> Mapping[str, str] | None:
        """The job's environment on this node; None when no source for it is known."""
        return self.job.environ_of(self.name)


def decided(usual: Majority[T] | None) -> Majority[T] | None:
    """The majority if it is large enough to compare a node with, else None."""
    return usual if usual is not None and usual.decides else None


def most(values: Iterable[T], least: int = 1) -> T | None:
    """The value that more than half of them, and at least `least`, share."""
    choices = list(values)
    if not choices:
        return None
    value, votes = choices[0], choices.count(choices[0])
    if 2 * votes <= len(choices):
        value, votes = Counter(choices).most_common(1)[0]
    return value if votes >= least and 2 * votes > len(choices) else None


def majority_text(usual: Majority[T], what: str) -> str:
    """Format a majority: "12 of 13 nodes of its group have WHAT"."""
    return f"{usual.holders} of its group have {what}"


Interface = IPv4Interface | IPv6Interface


@lru_cache(maxsize=65536)  # several checks parse the addresses of thousands of nodes
def parse_address(text: str) -> Interface | None:
    """An address with or without the length of its network; None for anything else."""
    try:
        return ip_interface(text)
    except ValueError:
        return None


def is_loopback(text: str) -> bool:
    """Whether a text is an address of the loopback: 127.0.1.1, ::1."""
    address = parse_address(text)
    return address is not None and address.ip.is_loopback


def ip_version(text: str) -> int:
    """4 or 6; 0 for any other text."""
    address = parse_address(text)
    return 0 if address is None else address.version


def addresses_of(facts: Facts) -> set[str]:
    """All addresses of a node except loopback ones."""
    listed = (address for interface in facts.interfaces for address in interface.addresses)
    addresses = (address.partition("/")[0] for address in listed)
    return {address for address in addresses if not is_loopback(address)}


Distance = Literal["PIX", "PXB", "PHB", "NODE", "SYS", "unknown"]

DISTANCES: Final[tuple[Distance, ...]] = ("PIX", "PXB", "PHB", "NODE", "SYS", "unknown")
"""Near to far."""

_ONE_SWITCH: Final = 2
"""Path elements below the common part within one switch: its downstream port and the device."""


@lru_cache(maxsize=4096)  # machines of one model have the same few paths
def pci_distance(
    a: tuple[str, ...] | None, b: tuple[str, ...] | None, numa_a: int | None, numa_b: int | None
) -> Distance:
    """Distance of two devices from their sysfs paths (root complex first) and NUMA nodes."""
    if not a or not b:
        return "unknown"
    if a[0] != b[0]:
        if numa_a is None or numa_b is None:
            return "unknown"
        return "NODE" if numa_a == numa_b else "SYS"
    shared = sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(a, b, strict=False)))
    if shared == 1:
        return "PHB"
    return "PIX" if max(len(a), len(b)) - shared <= _ONE_SWITCH else "PXB"
