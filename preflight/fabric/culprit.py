"""The parts of a fabric that can be at fault, and what a decoder finds against them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Kind = Literal["node", "endpoint", "path", "leaf_rail"]
"""`endpoint`: one rail of one node (GPU, PCIe, NIC, cable, leaf port). `path`: between two nodes,
both of them fine. `leaf_rail`: one rail of all nodes under a leaf switch."""

Symptom = Literal["slow", "latency", "spikes", "late", "corrupt", "hung", "no_connect", "broken"]
"""`late`: the host began its operations late; the network was as fast as its peers'."""


SecondLookSaid = Literal["", "none", "too_short", "counter_moved"]
"""Why a clean second look does not acquit: there was none, it was shorter than what was first seen
takes to come again, or a counter moved in it."""


class Component(Struct, frozen=True, order=True):
    """One part, at the level at which it can be repaired or left out."""

    kind: Kind
    name: str
    """"h3", "h3 rail 2", "h1-h2", "h1-h2 rail 2", "leaf4 rail 2"."""
    nodes: tuple[str, ...]
    """One; two of a path; all under a leaf."""
    rail: int | None = None
    """None: on all rails."""

    @classmethod
    def of(cls, kind: Kind, nodes: tuple[str, ...], rail: int | None = None) -> Component:
        """A node or path, or one rail of it, by the name that reports write."""
        return cls(kind, "-".join(nodes) + ("" if rail is None else f" rail {rail}"), nodes, rail)


class Found(Struct, frozen=True, kw_only=True):
    """One fault: the component, or the set among which it must lie, and what it explains."""

    among: tuple[Component, ...]
    """Exactly one where it is named; more where the samples do not tell them apart."""
    symptom: Symptom
    confidence: float
    """0 to 1: how far the samples at hand exclude other explanations."""
    pairs: tuple[tuple[str, str], ...] = ()
    """The bad pairs that it explains."""
    cleared_partners: int = 0
    """How many distinct partners of it are fine with somebody else."""
    events: int = 0
    """Of spikes and late starts: how many, in how many operations, and the longest of them."""
    operations: int = 0
    worst_us: float = 0.0
    elsewhere: float = 0.0
    """Events per operation in the rest of the fabric."""
    strength: float = 0.0
    """Of a shift: in log time, 0.1 is 10 % slower. Of events: how many more per operation."""

    second_look: SecondLookSaid = ""
    """Of events that were seen in the scheduled rounds and not again: why that acquits nobody."""

    @property
    def named(self) -> Component | None:
        """The culprit, where there is exactly one."""
        return self.among[0] if len(self.among) == 1 else None
