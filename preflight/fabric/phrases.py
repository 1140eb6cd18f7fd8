"""Names a culprit for an operator, in phrases that all findings about pairs share, with advice."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from preflight.core.files import shipped_table
from preflight.core.text import join_or
from preflight.fabric.decoding.culprit import NODE_KINDS, Component, Culprit
from preflight.fabric.schedule import Pairing
from preflight.fleet.nodeset import fold

ADVICE: dict[str, dict[str, str]] = shipped_table(__file__, "advice.toml")
"""What to do about each fault, by where it was found."""

STATES: dict[str, dict[str, str]] = shipped_table(__file__, "states.toml")
"""What the states of bad pairs are called, and what to do about each."""

BlameKind = Literal["node", "endpoint", "path", "leaf_rail", "unresolved", "systemic"]


class Blame(Struct, frozen=True, kw_only=True):
    """One component, or the set among which it lies, with the pairs that point at it."""

    kind: BlameKind
    among: tuple[Component, ...] = ()
    """The one at fault; `unresolved`: each that may be; `node`: all that share a cause."""
    sentence: str
    confidence: float
    """0 to 1: how far the samples at hand exclude other explanations."""
    advice: str
    pairs: tuple[Pairing, ...]
    rail: int | None = None
    """The rail at fault; None: all of them."""
    events: int = 0
    """For events: how many, in how many operations."""
    operations: int = 0

    @property
    def node(self) -> str:
        """The node at fault, or the only suspected one."""
        alone = len(self.among) == 1 and self.among[0].kind in NODE_KINDS
        return self.among[0].nodes[0] if alone else ""

    @property
    def component(self) -> str:
        """As reports write it: "h3", "pair h1-h2", "leaf4 rail 2", "h1 or h2", "fleet"."""
        if self.kind == "systemic":
            return "fleet"
        if self.kind == "unresolved":
            return join_or([part.words for part in self.among])
        if self.kind == "path":
            return f"pair {'-'.join(self.among[0].nodes)}"
        return self.among[0].name if self.kind == "leaf_rail" else self.node or fold(self.nodes)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every node that is at fault for sure; none for a path, whose two nodes are fine."""
        sure = self.kind in (*NODE_KINDS, "leaf_rail")
        return tuple(name for part in self.among for name in part.nodes) if sure else ()

    @property
    def culprits(self) -> tuple[str, ...]:
        """The nodes that must be left out, if the component is not a single node."""
        return () if self.node else self.nodes

    @property
    def suspects(self) -> tuple[str, ...]:
        """The nodes among which the culprit lies, if no more is known: none is proven good.

        A leaf's nodes only if nothing else can be at fault.
        """
        if self.kind != "unresolved":
            return ()
        parts = [part for part in self.among if part.kind != "leaf_rail"] or self.among
        return tuple(dict.fromkeys(name for part in parts for name in part.nodes))


def components(names: Iterable[str]) -> str:
    """Name several components that are to blame for one pair: "h1 and pair h1-h2"."""
    return " and ".join(dict.fromkeys(names))


def with_partners(what: str, partners: int, partner: str = "its only partner") -> str:
    """Say "h3 is slow with each of its 3 partners"; `partner`: what to call a single one."""
    return f"{what} with " + (f"each of its {partners} partners" if partners > 1 else partner)


def both_fine(
    ends: Sequence[str], rails: Collection[int | None], culprits: Sequence[Culprit]
) -> str:
    """Say which ends of a bad path are fine with others, and which have another fault."""
    a, b = ends
    parts = [
        culprit.component for culprit in culprits if culprit.component and culprit.node in ends
    ]
    on_rails = [part for part in parts if part.rail is None or {None, part.rail} & {*rails}]
    faulty = [name for name in ends if any(name in part.nodes for part in on_rails)]
    if len(faulty) == len(ends):
        return f"{a} and {b} also have faults of their own"
    if faulty:
        fine = b if faulty == [a] else a
        return f"{fine} is fine with others, {faulty[0]} also has another fault"
    rail_list = ", ".join(str(rail) for rail in sorted(rail for rail in rails if rail is not None))
    where = f"on rail {rail_list} " if parts and rail_list else ""
    return f"{where}{a} and {b} are both fine with others"


OTHER_PLAN = (
    "it follows another plan than it was given (seed, sizes, rounds or deadlines differ), so what "
    "it measured does not count"
)
"""A node whose agent reports it has measured, but not what was ordered."""

NO_GPU_MEMORY = "CUDA out of memory"
OWN_CAUSES = (NO_GPU_MEMORY, "CUDA error")
"""Errors of a measuring process whose cause is on its own node, whatever the other end does."""

_BY_SIGKILL = "its measuring process was killed by SIGKILL"
"""A supervisor's message: only the kernel or a privileged user does that."""

_TWO = 2


def advice_on(name: str, error: str) -> str:
    """Return what the operator must do; "" if the error alone does not say."""
    return next((do.format(name) for words, do in ADVICE["error"].items() if words in error), "")


_PORT = re.compile(r"(?:\bon dev |\bhca )([A-Za-z0-9_.-]+)(?::(\d+))?")
"""NCCL's text on a queue pair and on a completion: misc/ibvwrap.cc, net_ib.cc (2.27 to 2.31)."""

_GID = re.compile(r"\blocal GID index (\d+)")
_CARRIER = re.compile(r"NET/IB ([A-Za-z0-9_.+-]+)( RoCE)?")


def on_port(name: str, error: str, partner: str) -> str:
    """Say where to look after an NCCL error that names an RDMA port; "" if it names none."""
    port = _PORT.search(error)
    if port is None:
        return ""
    device, number = port[1], port[2] or "1"
    gid = _GID.search(error)
    table = f", its GID {gid[1]} (show_gids {device})" if gid else ""
    return (
        f"on {name} look at {device} port {number}: cable, switch port and error counters (rdma "
        f"link show {device}/{number}){table}; at the same port of {partner}; run again"
    )


def ports(nets: Mapping[str, str]) -> str:
    """Say "mlx5_2 on h1 and mlx5_2 on h2"; "" if anything but RDMA carried an end's data.

    `nets`: node name → what carried its data, as in "NET/IB mlx5_2 GDRDMA".
    """
    return " and ".join(f"{carrier[1]} on {name}" for name, carrier in _carriers(nets).items())


def on_slow_ports(nets: Mapping[str, str]) -> str:
    """Say where to look if a rail over RDMA is slow; "" if something else carries it."""
    carriers = _carriers(nets).values()
    if not carriers:
        return ""
    links = [f"rdma link show {carrier[1]}/1" for carrier in carriers]
    counters = [
        f"rdma statistic show link {carrier[1]}/1" if carrier[2] else f"perfquery -C {carrier[1]}"
        for carrier in carriers
    ]
    commands = "; ".join(dict.fromkeys((*links, *counters)))
    return f"check link rate, cable and error counters of {ports(nets)} ({commands}); exclude it"


def _carriers(nets: Mapping[str, str]) -> dict[str, re.Match[str]]:
    """The RDMA device of each node; empty if one of them used something else."""
    matches = {name: match for name, net in nets.items() if (match := _CARRIER.match(net))}
    return matches if len(matches) == len(nets) else {}


def after_signal(error: str) -> str:
    """Return advice, with {0} for the node, on a process that the kernel killed; else ""."""
    return ADVICE["pair"]["killed"] if _BY_SIGKILL in error else ""


def unresolved_advice(advice: str, among: Collection[str], partners: str) -> str:
    """Say which nodes to exclude if the culprit is one of several: `it` cannot be typed."""
    look = advice.removesuffix("; run again").partition("; exclude it")[0]
    if len(among) < _TWO:
        return advice
    all_names = "both" if len(among) == _TWO else f"all {len(among)}"
    return f"{look}; exclude {all_names}, or run again {partners} to tell which it is"


def more_partners(nodes: int, pairs: int) -> str:
    """Say with which nodes or pairs to measure again if these did not settle it."""
    if nodes <= _TWO:
        return "with a third node"
    all_pairs = nodes * (nodes - 1) // 2
    if pairs >= all_pairs:
        return "beside more nodes"
    return "with more pairs (--preflight-sweep=exhaustive)"
