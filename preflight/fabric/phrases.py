"""Names a culprit for an operator, with the phrases that all findings about pairs share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.core.text import either
from preflight.fabric.decoding.culprit import OF_A_NODE, Component
from preflight.fabric.schedule import Pairing
from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from preflight.fabric.decoding.culprit import Culprit


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
        alone = len(self.among) == 1 and self.among[0].kind in OF_A_NODE
        return self.among[0].nodes[0] if alone else ""

    @property
    def component(self) -> str:
        """As reports write it: "h3", "pair h1-h2", "leaf4 rail 2", "h1 or h2", "fleet"."""
        if self.kind == "systemic":
            return "fleet"
        if self.kind == "unresolved":
            return either([part.words for part in self.among])
        if self.kind == "path":
            return f"pair {'-'.join(self.among[0].nodes)}"
        return self.among[0].name if self.kind == "leaf_rail" else self.node or fold(self.nodes)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every node that is at fault for sure; none for a path, whose two nodes are fine."""
        sure = self.kind in (*OF_A_NODE, "leaf_rail")
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


def with_partners(what: str, partners: int, only: str = "its only partner") -> str:
    """Say "h3 is slow with each of its 3 partners"; `only`: the partner's name, of one."""
    return f"{what} with " + (f"each of its {partners} partners" if partners > 1 else only)


def both_fine(
    ends: Sequence[str], rails: Collection[int | None], culprits: Sequence[Culprit]
) -> str:
    """Say which ends of a bad path are fine with others, and which have another fault."""
    a, b = ends
    named = [one.component for one in culprits if one.component and one.node in ends]
    there = [part for part in named if part.rail is None or not {None, part.rail}.isdisjoint(rails)]
    ill = [name for name in ends if any(name in part.nodes for part in there)]
    if len(ill) == len(ends):
        return f"{a} and {b} also have faults of their own"
    if ill:
        return f"{b if ill == [a] else a} is fine with others, {ill[0]} also has another fault"
    on = ", ".join(str(rail) for rail in sorted(rail for rail in rails if rail is not None))
    where = f"on rail {on} " if named and on else ""
    return f"{where}{a} and {b} are both fine with others"
