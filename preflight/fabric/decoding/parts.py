"""Through which parts of the fabric an observation goes, and which parts are worth suspecting."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from preflight.fabric.culprit import Component

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from preflight.fabric.culprit import Kind

PENALTY = {"endpoint": 0.0, "node": 2.0, "leaf_rail": 2.0, "path": 4.0}
"""In nats: what explains more and is more common is preferred where the samples leave a choice.

Sparse noisy-OR with explaining away; the values were tried on simulated fabrics.
"""


class Key(NamedTuple):
    """A part, cheap to make by the million; `Component` is what leaves this room."""

    kind: Kind
    one: str
    other: str = ""
    rail: int = -1


ALL_RAILS = -1
"""The rail of an observation that was made on most rails at once."""

AS_ONE = -2
"""The rail of a node's key where it is judged by what hit most of its rails at once, alone.

A host that is late is late on all of them: that its rails one by one show nothing says nothing.
"""


def alike(key: Key, other: Key) -> bool:
    """Whether they are one node, judged in two ways."""
    return key.kind == "node" and key[:3] == other[:3]


class Place(NamedTuple):
    """Where an observation was made. Of one node alone (a late host): `b` is empty."""

    a: str
    b: str
    rail: int


class Parts:
    """The parts of one fabric, as far as observations can tell them apart."""

    def __init__(self, places: Sequence[Place], leaves: Mapping[str, str]) -> None:
        self._places = places
        self._leaves = leaves
        self._many_rails = len(set(map(itemgetter(2), places)) - {ALL_RAILS}) > 1
        self._under: dict[str, list[str]] = defaultdict(list)
        for name, leaf in leaves.items():
            self._under[leaf].append(name)

    @property
    def tested(self) -> int:
        """How many parts could have been named: so many chances has chance."""
        pairs = set(map(itemgetter(0, 1), self._places))
        nodes = {name for pair in pairs for name in pair}
        rails = set(map(itemgetter(2), self._places))
        return (len(nodes) + len(pairs)) * (1 + len(rails) if len(rails) > 1 else 1)

    def of(self, place: Place) -> list[Key]:
        """All parts that one observation goes through."""
        a, b, rail = place
        ends = [name for name in (a, b) if name]
        keys = [Key("node", name) for name in ends]
        if b:
            keys.append(Key("path", a, b))
        if rail == ALL_RAILS:
            return keys + [Key("node", name, rail=AS_ONE) for name in ends]
        if self._many_rails:
            keys += [Key("endpoint", name, rail=rail) for name in ends]
            if b:
                keys.append(Key("path", a, b, rail))
        leaves = dict.fromkeys(leaf for name in ends if (leaf := self._leaves.get(name)))
        if b and len(self._under) > 1:
            rails = rail if self._many_rails else -1
            keys += [Key("leaf_rail", leaf, rail=rails) for leaf in leaves]
        return keys

    def suspects(self, hot: Iterable[int]) -> dict[Key, list[int]]:
        """Every part that a hot observation goes through, with all observations through it."""
        wanted = dict.fromkeys(key for number in hot for key in self.of(self._places[number]))
        of_nodes = self._of_nodes({key.one for key in wanted if key.kind == "node"})
        of_leaves = self._of_leaves([key for key in wanted if key.kind == "leaf_rail"])
        return {
            key: of_leaves[key] if key.kind == "leaf_rail" else self._within(key, of_nodes[key.one])
            for key in wanted
        }

    def _of_nodes(self, names: Collection[str]) -> dict[str, list[int]]:
        through: dict[str, list[int]] = {name: [] for name in names}
        for number, (a, b, _) in enumerate(self._places if names else ()):
            if a in through:
                through[a].append(number)
            if b in through:
                through[b].append(number)
        return through

    def _within(self, key: Key, through: list[int]) -> list[int]:
        """Of all observations through one node those that go through a part of it, or its path."""
        if key.rail == AS_ONE:
            return [number for number in through if self.whole(number)]
        if key.kind == "node":
            return through
        if key.rail >= 0:
            through = [number for number in through if self._places[number].rail == key.rail]
        if key.kind == "path":
            through = [number for number in through if self._places[number].b == key.other]
        return through

    def _of_leaves(self, keys: Collection[Key]) -> dict[Key, list[int]]:
        through: dict[Key, list[int]] = {key: [] for key in keys}
        wanted: dict[tuple[str | None, int], Key] = {(key.one, key.rail): key for key in keys}
        leaf_of = self._leaves.get
        for number, (a, b, rail) in enumerate(self._places if keys else ()):
            if not b or rail == ALL_RAILS:
                continue
            one, other = leaf_of(a), leaf_of(b)
            for leaf in (one,) if one == other else (one, other):
                key = wanted.get((leaf, rail if self._many_rails else -1))
                if key is not None:
                    through[key].append(number)
        return through

    def members(self, key: Key) -> list[Key]:
        """What a part holds that could be at fault alone: a leaf's nodes, a node's endpoints."""
        if key.kind == "leaf_rail":
            kind: Kind = "endpoint" if self._many_rails else "node"
            return [
                Key(kind, name, rail=key.rail) for name in self._under[key.one] if name in self._met
            ]
        if key.kind == "node" and self._many_rails and key.rail != AS_ONE:
            return [Key("endpoint", key.one, rail=rail) for rail in self._met[key.one]]
        return []

    def whole(self, number: int) -> bool:
        """Whether an observation was made on all rails together."""
        return self._places[number].rail == ALL_RAILS

    @cached_property
    def _met(self) -> dict[str, set[int]]:
        """On which rails each node was measured."""
        met: dict[str, set[int]] = defaultdict(set)
        for a, b, rail in self._places:
            if rail != ALL_RAILS:
                met[a].add(rail)
                met[b].add(rail)
        return met

    def pairs(self, through: Iterable[int]) -> tuple[tuple[str, str], ...]:
        """The pairs of nodes that these observations were made of."""
        places = (self._places[number] for number in through)
        return tuple(dict.fromkeys((place.a, place.b) for place in places if place.b))

    def penalty(self, key: Key) -> float:
        """What a part costs as an explanation; with one rail the node is its own endpoint."""
        if key.kind == "node" and not self._many_rails:
            return 0.0
        return PENALTY[key.kind]

    def component(self, key: Key) -> Component:
        """The part as reports name it."""
        rail = key.rail if key.rail >= 0 else None
        on = f" rail {rail}" if rail is not None else ""
        if key.kind == "path":
            return Component("path", f"{key.one}-{key.other}{on}", (key.one, key.other), rail)
        if key.kind == "leaf_rail":
            nodes = tuple(self._under[key.one])
            return Component("leaf_rail", f"{key.one}{on}", nodes, rail)
        return Component(key.kind, f"{key.one}{on}", (key.one,), rail)
