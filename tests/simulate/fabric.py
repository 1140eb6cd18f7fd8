"""The fabric that is simulated: who is in it, under which leaf, and who is measured with whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

Spot = tuple[str, int]
"""A node and one of its rails."""


class Fabric(Struct, frozen=True, kw_only=True):
    """Nodes, rails, leaves, and the rounds that were run: input data like a real sweep's."""

    nodes: tuple[str, ...]
    """In fleet order."""
    rails: int
    rounds: tuple[tuple[tuple[str, str], ...], ...]
    """Each a set of disjoint pairs."""
    retested: int = 0
    """Rounds from this number on are retests; 0: there are none."""
    leaves: dict[str, str] = {}
    """Node name → its leaf switch; empty: no source of topology is known, and no hop is long."""

    def meetings(self) -> Iterator[tuple[int, str, str]]:
        """Each (round, a, b) in the order in which they are measured."""
        for number, around in enumerate(self.rounds):
            for a, b in around:
                yield number, a, b

    def under(self, leaf: str) -> tuple[str, ...]:
        """The nodes under a leaf switch, in fleet order."""
        return tuple(name for name in self.nodes if self.leaves.get(name) == leaf)

    def far(self, a: str, b: str) -> bool:
        """Whether a spine lies between two nodes."""
        return self.leaves.get(a) != self.leaves.get(b)


def named(count: int, *, per_leaf: int = 0) -> tuple[tuple[str, ...], dict[str, str]]:
    """Names for `count` nodes in order, and their leaves where each leaf holds `per_leaf`."""
    width = len(str(count))
    nodes = tuple(f"n{number + 1:0{width}d}" for number in range(count))
    if not per_leaf:
        return nodes, {}
    return nodes, {name: f"leaf{at // per_leaf + 1}" for at, name in enumerate(nodes)}
