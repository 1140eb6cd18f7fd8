"""Summarise a pair's samples: bus bandwidth, latency, and which end broke off.

A good node whose partner died also fails; only a node's own error, and the order of the errors,
prove which node is at fault.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.text import first_few, gbs, size
from preflight.fabric.samples import End, PairSamples, PairState, Timing

LATENCY_BELOW = 64 << 10
"""Below this size, bytes, the time is all latency."""

WORST_FIRST: tuple[PairState, ...] = (
    "corrupt", "hung", "no_connect", "error", "not_run", "absent", "measured",
)  # fmt: skip


def wire_from(backend: str) -> int:
    """Return the least size, bytes, at which bandwidth is judged: the wire decides the time.

    With NCCL 1 MiB takes 23 us at 46 GB/s, as long as its latency; 16 MiB takes 365 us.
    """
    return 16 << 20 if backend == "nccl" else LATENCY_BELOW


def busbw_gbs(size_bytes: int, seconds: float, ranks: int = 2) -> float:
    """Return the bus bandwidth of an all-reduce in GB/s (1e9): S/t * 2(n-1)/n, as in nccl-tests.

    Source: NVIDIA/nccl-tests doc/PERFORMANCE.md. For two ranks the factor is 1.
    """
    return size_bytes / max(seconds, 1e-9) / 1e9 * 2 * (ranks - 1) / ranks


def bypass(pair: PairSamples) -> str:
    """Return the way past the NICs that NCCL took between two nodes: "P2P", "SHM"; else "".

    NCCL does so within an NVLink domain, and if it takes both nodes for one host.
    """
    if pair.backend != "nccl" or any(end.state != "measured" for end in pair.ends):
        return ""
    ways = dict.fromkeys(way for end in pair.ends for way in end.net.split(" + ") if way)
    return " + ".join(way for way in ways if not way.startswith("NET/"))


def joint_state(pair: PairSamples) -> PairState:
    """Return the worse of both ends' states; a pair whose data went past the NICs was not run."""
    return "not_run" if bypass(pair) else worst_state((pair.first, pair.second))


def worst_state(ends: Iterable[End | None]) -> PairState:
    """Return the worst of these ends' states; an end that never reported counts as absent."""
    states: list[PairState] = ["absent" if end is None else end.state for end in ends]
    return min(states, key=WORST_FIRST.index, default="absent")


def lost_accounts(pair: PairSamples, silent: Collection[str]) -> tuple[str, ...]:
    """Return the ends whose account is missing though nothing failed: the pair is not judged.

    None if an end stopped answering, or if the other end reports an error.
    """
    ends = {pair.a: pair.first, pair.b: pair.second}
    missing = tuple(name for name, end in ends.items() if end is None)
    fine = all(end.state == "measured" for end in ends.values() if end is not None)
    return missing if fine and set(missing).isdisjoint(silent) else ()


def lost_sentence(lost: Sequence[str]) -> str:
    """Say whose account of a pair is missing."""
    subject = f"{lost[0]}'s account of it is" if len(lost) == 1 else "both ends' accounts of it are"
    return f"{subject} missing, so no node is blamed: run again"


def pair_error(pair: PairSamples) -> str:
    """Join both ends' errors; once, if both report the same."""
    if way := bypass(pair):
        return f"its data went over {way}, which measures no NIC"
    by_node = {end.node: end.error for end in pair.ends if end.error}
    if len(by_node) > 1 and len(set(by_node.values())) == 1:
        return next(iter(by_node.values()))
    return "; ".join(f"{node}: {error}" for node, error in by_node.items())


def shortest_us(timings: Sequence[Timing]) -> list[float]:
    """Return each operation's time at the end that began it last: the others waited for it."""
    first, *others = (timing.times_us for timing in timings)
    shortest = list(first)
    for times_us in others:
        pairs = zip(shortest, times_us, strict=False)
        shortest = [a if a < b else b for a, b in pairs]  # noqa: FURB136 (min() is 5 times slower)
    return shortest


class Pair(Struct, frozen=True, kw_only=True):
    """The worst rail of one pair, with its peers and the blame."""

    a: str
    b: str
    state: PairState
    backend: str = ""
    rail: int = 0
    rails: int = 1
    at_bytes: int = 0
    """The size at which bandwidth is judged: the largest that was measured."""
    busbw_gbs: float | None = None
    peers_gbs: float | None = None
    """Median of the pairs that touch neither node; None if there are none."""
    limit_gbs: float | None = None
    limit_origin: str = ""
    """"0.25 of the peers' median", "expected by fleet.toml", "shipped floor for gloo"."""
    decided_by: str = ""
    """"peers", "inventory", "platform", "history", or "least": nothing else is known."""
    latency_us: float | None = None
    latency_limit_us: float | None = None
    slow: str = ""
    """"bandwidth", "latency", or ""."""
    error: str = ""
    """The ends' errors, or why the pair was not measured."""
    blamed: str = ""
    """"h3", "pair h1-h2", "h1 or h2"; "" for a pair that is fine."""
    why: str = ""
    """The blame in one sentence."""
    advice: str = ""
    culprits: tuple[str, ...] = ()
    """The nodes that must be left out, if the blamed part is not a single node."""
    suspects: tuple[str, ...] = ()
    """The nodes among which the culprit lies, if no more is known."""
    events: int = 0
    """For events: how many, in how many operations through the blamed part."""
    operations: int = 0
    doubt: str = ""
    """Why it cannot be judged though it was slow once: there was no time for a retest."""
    note: str = ""
    """What else was seen, for a pair that is fine."""
    partial: str = ""
    """The end that lacks rails, so that the pair was measured on the others only."""
    short: str = ""
    """How far it got, if its time was up before bandwidth could be judged."""
    waited: bool = False
    """Not measured because its nodes waited for another, blamed node: they are not judged."""
    busy: tuple[str, ...] = ()
    """Not measured because another job or run uses these nodes."""
    trouble: bool = False
    """Not measured because a node that should have taken part in the sweep could not."""
    shut: bool = False
    """The route between the two blamed nodes is closed: the port stage also found that."""

    @property
    def bad(self) -> bool:
        """Whether the pair was measured, or tried, and is not fine."""
        if self.lost:
            return False
        return bool(self.slow or self.blamed) or self.state not in ("measured", "not_run")

    @property
    def lost(self) -> bool:
        """Whether an end's account is missing and no node is blamed for it."""
        return self.state == "absent" and not self.blamed

    @property
    def remarks(self) -> str:
        """Remarks on a pair that is fine."""
        once = f"; {self.note}, but not when it was measured again" if self.note else ""
        return once + (f"; on {self.rails} rails: {self.partial}" if self.partial else "")

    @property
    def no_limit(self) -> str:
        """Why its bandwidth was measured and not judged; "" if it was judged."""
        if self.limit_gbs is None or self.busbw_gbs is None:
            return "no peers, no expected value and no floor to compare with"
        if self.decided_by == "least" and self.peers_gbs is None and self.backend == "nccl":
            # The floor of any network is too low for one that carries NCCL.
            reached = f"median {gbs(self.busbw_gbs)} at {size(self.at_bytes)}"
            return f"{reached}: no peers, no expected value and no earlier runs to compare with"
        return ""


_WAITED = re.compile(
    r"^(Dist(Store|Network)Error|Rendezvous\w*Error|TimeoutError|BrokenPipeError|Connection\w*Error)"
    r"|torch\.rendezvous|Socket Timeout|client socket|Connection reset|Broken pipe|failed to recv"
    r"|^the sweep.s store was silent"
)
NO_CULPRIT = "the nodes waited for one another, and none of them reports what went wrong"
_ALONE = "it waited in vain for the sweep's store or the other nodes, which went on without it"
_MANY = 3


class LastMessage(Struct, frozen=True):
    """The last message of a node that did not finish."""

    node: str
    kind: Literal["error", "gone", "silent"]
    """It reported an error; its session broke; it sent nothing more."""
    reason: str

    @property
    def own_fault(self) -> bool:
        """Whether the fault is on this node, and not on others for which it waited."""
        return self.kind == "gone" or (self.kind == "error" and not _WAITED.search(self.reason))


class Breakdown(Struct, frozen=True):
    """Which nodes failed and which only waited. Victims without culprits: no culprit is proven."""

    culprits: dict[str, str] = {}
    """Node name → what happened there."""
    victims: dict[str, str] = {}
    """Node name → the nodes it waited for, as a phrase."""


def find_breakdown(
    messages: Iterable[LastMessage], *, nodes: Collection[str], host: str, finished: Collection[str]
) -> Breakdown:
    """Separate culprits from victims, by the nodes' messages in order of arrival.

    `host` hosts the store: after its loss, others can only fail. `finished`: nodes that measured
    and finished; if there are any, no other node held up those that are missing.
    """
    by_node = _decisive_messages(messages, host)
    culprits = {name: message.reason for name, message in by_node.items() if message.own_fault}
    others = {name: message for name, message in by_node.items() if not message.own_fault}
    silent = {name: last.reason for name, last in others.items() if last.kind == "silent"}
    if finished and by_node.get(host, _NO_MESSAGE).kind != "gone":
        culprits |= {name: silent.get(name, _ALONE) for name in others}
    elif not culprits and silent.keys() != set(nodes):
        culprits = silent
    waited = f"waited for {first_few([*culprits], _MANY)}" if culprits else NO_CULPRIT
    return Breakdown(culprits, {name: waited for name in others if name not in culprits})


_NO_MESSAGE = LastMessage("", "error", "")


def _decisive_messages(messages: Iterable[LastMessage], host: str) -> dict[str, LastMessage]:
    """Keep one message per node: its first, unless a later one is about the node itself."""
    by_node: dict[str, LastMessage] = {}
    for message in messages:
        earlier = by_node.get(message.node)
        if message.kind == "error" and by_node.get(host, _NO_MESSAGE).kind == "gone":
            message = replace(message, kind="silent")  # noqa: PLW2901  it only lost the store
        if earlier is None or (message.own_fault and not earlier.own_fault):
            by_node[message.node] = message
    return by_node
