"""The culprit: the part of the fabric at fault, or the parts that the samples cannot separate.

A named culprit explains other suspicions: a part explains what goes through it, never a wider
part that is also bad with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from preflight.fabric.schedule import Pairing

PartKind = Literal["node", "endpoint", "path", "leaf_rail"]
"""`endpoint`: one rail of one node (GPU, PCIe, NIC, cable, leaf port). `path`: between two nodes,
both of them fine. `leaf_rail`: one rail of all nodes under a leaf switch."""

NODE_KINDS = ("node", "endpoint")

Symptom = Literal["slow", "latency", "spikes", "late", "corrupt", "hung", "no_connect", "broken"]
"""`late`: the host began its operations late; the network was as fast as its peers'."""

RetestDoubt = Literal["", "none", "too_short", "counter_moved"]
"""Why a clean retest does not clear a part: there was none, it was too short for the events that
were first seen, or a counter moved in it."""


class Component(Struct, frozen=True):
    """One part, at the level at which it can be repaired or left out."""

    kind: PartKind
    nodes: tuple[str, ...]
    """One node; two of a path; all under a leaf."""
    rail: int | None = None
    """None: on all rails."""
    leaf: str = ""
    """The switch of a `leaf_rail`."""

    @property
    def name(self) -> str:
        """As reports write it: "h3", "h3 rail 2", "h1-h2", "leaf4 rail 2"."""
        return self._without_rail if self.rail is None else f"{self._without_rail} rail {self.rail}"

    @property
    def words(self) -> str:
        """For messages: "h3", "rail 2 of h3", "the path h1-h2", "rail 2 of leaf4"."""
        if self.rail is not None:
            return f"rail {self.rail} of {self._without_rail}"
        return f"the path {self._without_rail}" if self.kind == "path" else self._without_rail

    @property
    def _without_rail(self) -> str:
        return self.leaf or "-".join(self.nodes)


class Culprit(Struct, frozen=True, kw_only=True):
    """One fault: the component, or the set among which it must lie, and what it explains."""

    among: tuple[Component, ...]
    """Exactly one if it is named; more if the samples cannot separate them."""
    symptom: Symptom = "broken"
    confidence: float
    """0 to 1: how far the samples at hand exclude other explanations."""
    pairs: tuple[Pairing, ...] = ()
    """The bad pairs that it explains."""
    cleared_partners: int = 0
    """How many distinct partners of it are fine with another node."""
    events: int = 0
    """For spikes and late starts: how many, in how many operations, and the longest."""
    operations: int = 0
    worst_us: float = 0.0
    elsewhere: float = 0.0
    """Events per operation in the rest of the fabric."""
    strength: float = 0.0
    """For a shift: in log time, 0.1 is 10 % slower. For events: how many more per operation."""
    second_look: RetestDoubt = ""
    """For events that were seen in the scheduled rounds only: why that clears no part."""

    @property
    def component(self) -> Component | None:
        """The part at fault, where there is exactly one."""
        return self.among[0] if len(self.among) == 1 else None

    @property
    def kind(self) -> PartKind | Literal["unresolved"]:
        """Of the part at fault."""
        return self.among[0].kind if len(self.among) == 1 else "unresolved"

    @property
    def node(self) -> str:
        """The node at fault, on all its rails or on one; "" if it is not a node."""
        return self.among[0].nodes[0] if self.kind in NODE_KINDS else ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes at fault or suspected; of a path alone, its two ends."""
        parts = [part for part in self.among if part.kind != "path"] or self.among
        return tuple(dict.fromkeys(name for part in parts for name in part.nodes))


SHIFTS: tuple[Literal["slow", "latency"], ...] = ("slow", "latency")
EVENTS = ("spikes", "late")
FAILURES = ("hung", "no_connect", "broken")
_BY_EVENTS = ("slow", "latency", "hung", "broken")
"""States of a pair that many events can cause; failing to connect takes more."""

_MOST_SHARE_EXPLAINED = 0.5


def is_explained(culprit: Culprit, named: Sequence[Culprit]) -> bool:
    """Whether the parts of named culprits explain a further one, whatever their symptoms.

    A path explains neither end, a node no leaf. But a rail explains its node, which is repaired at
    the same place; most of a leaf's nodes explain the leaf; and one part of a set explains the
    set's wider parts.
    """
    parts = [other.component for other in named if other.component is not None]
    # A set in which outright failures leave the culprit open explains its paths, and smaller sets.
    open_set = culprit.component is None and culprit.symptom != "corrupt"
    parts += [
        part
        for other in named
        if other.component is None and other.symptom in FAILURES
        for part in other.among
        if open_set or part.kind == "path"
    ]
    return all(
        _is_named_leaf(part, parts) or any(_explains(other, part, culprit.among) for other in parts)
        for part in culprit.among
    )


def explains_path(cause: Culprit, effect: Culprit) -> bool:
    """Whether a path was slow, or hung, because a wider part loses or delays data."""
    path, part = effect.component, cause.component
    if path is None or path.kind != "path" or part is None or part.kind == "path":
        return False
    return effect.symptom in _BY_EVENTS and cause.symptom in EVENTS and is_within(path, part)


def is_within(part: Component, other: Component) -> bool:
    """Whether all that goes through `part` goes through `other`."""
    rails = other.rail is None or part.rail == other.rail
    if other.kind == "path":
        return rails and part.kind == "path" and set(part.nodes) == set(other.nodes)
    if part.kind == "path":
        return rails and bool(set(part.nodes) & set(other.nodes))
    return rails and set(part.nodes) <= set(other.nodes)


def _explains(other: Component, part: Component, among: Sequence[Component]) -> bool:
    """Whether the named part `other` explains `part`, one of those `among` which a fault lies."""
    if is_within(part, other):
        return True
    return is_within(other, part) and any(
        is_within(other, suspect) and set(other.nodes) == set(suspect.nodes) for suspect in among
    )


def _is_named_leaf(part: Component, parts: Sequence[Component]) -> bool:
    """Whether the part is a leaf, most of whose nodes are named on that rail."""
    if part.kind != "leaf_rail":
        return False
    members = (
        member for member in parts if member.kind in NODE_KINDS and member.rail in (None, part.rail)
    )
    bad = {name for member in members for name in member.nodes}
    return len(bad.intersection(part.nodes)) > _MOST_SHARE_EXPLAINED * len(part.nodes)
