"""Faults that are planted: which part, what it does, how hard. The truth a decoder is held to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.fabric.decoding.culprit import Component, Symptom

if TYPE_CHECKING:
    from tests.simulate.fabric import Fabric, Spot

FaultKind = Literal["slow", "spikes", "dead", "late", "loss", "corrupt"]
"""`slow`: a share of its bandwidth is gone. `spikes`: some operations take long at both ends.
`dead`: no connection. `late`: the host begins some operations late. `loss`: one direction loses
packets. `corrupt`: some large operations come out wrong."""

SYMPTOMS: dict[FaultKind, frozenset[Symptom]] = {
    "slow": frozenset({"slow"}),
    "spikes": frozenset({"spikes"}),
    "dead": frozenset({"no_connect", "hung", "broken"}),
    "late": frozenset({"late"}),
    "loss": frozenset({"spikes"}),
    "corrupt": frozenset({"corrupt"}),
}
"""By which of a decoder's words each may be called."""


class Fault(Struct, frozen=True, kw_only=True):
    """One planted fault. Only what its kind needs is read."""

    component: Component
    kind: FaultKind
    speed: float = 1.0
    """Of `slow`: what is left of the bandwidth, 0 to 1."""
    per_operation: float = 0.0
    """Of `spikes`, `late`, `loss`, `corrupt`: how many of the operations it hits."""
    lasts_us: float = 10_000.0
    """Of `spikes`, `late`, `loss`: how much longer a hit operation takes, the median of them."""
    incoming: bool = True
    """Of `loss`: what goes into the part is lost; otherwise what leaves it."""

    def hits(self, a: str, b: str, rail: int) -> bool:
        """Whether what these two exchange on that rail goes through the part."""
        part = self.component
        if part.rail not in (None, rail):
            return False
        if part.kind == "path":
            return {a, b} == set(part.nodes)
        return a in part.nodes or b in part.nodes


def node(name: str) -> Component:
    """All rails of a node."""
    return Component("node", (name,))


def endpoint(name: str, rail: int) -> Component:
    """One rail of a node."""
    return Component("endpoint", (name,), rail)


def path(a: str, b: str, rail: int | None = None) -> Component:
    """What lies between two nodes, given in fleet order; on one rail, or on all."""
    return Component("path", (a, b), rail)


def leaf_rail(fabric: Fabric, leaf: str, rail: int) -> Component:
    """One rail of all nodes under a leaf switch."""
    return Component("leaf_rail", fabric.under(leaf), rail, leaf)


def spots(component: Component, rails: int) -> frozenset[Spot]:
    """The (node, rail) that a part takes in, or lies beside."""
    which = range(rails) if component.rail is None else (component.rail,)
    return frozenset((name, rail) for name in component.nodes for rail in which)
