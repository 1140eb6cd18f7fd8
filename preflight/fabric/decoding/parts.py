"""Through which parts of the fabric an observation goes, and which parts are worth suspecting."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from preflight.fabric.culprit import Component

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
        self._many_rails = len({place.rail for place in places} - {ALL_RAILS}) > 1
        self._under: dict[str, list[str]] = defaultdict(list)
        for name, leaf in leaves.items():
            self._under[leaf].append(name)

    @property
    def tested(self) -> int:
        """How many parts could have been named: so many chances has chance."""
        nodes = {name for place in self._places for name in (place.a, place.b)}
        pairs = {(place.a, place.b) for place in self._places}
        rails = {place.rail for place in self._places}
        return (len(nodes) + len(pairs)) * (1 + len(rails) if len(rails) > 1 else 1)

    def of(self, place: Place) -> list[Key]:
        """All parts that one observation goes through."""
        a, b, rail = place
        ends = [name for name in (a, b) if name]
        keys = [Key("node", name) for name in ends]
        if b:
            keys.append(Key("path", a, b))
        if rail == ALL_RAILS:
            return keys
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
        wanted = {key for number in hot for key in self.of(self._places[number])}
        through: dict[Key, list[int]] = {key: [] for key in wanted}
        if not wanted:
            return through
        names = {key.one for key in wanted if key.kind != "leaf_rail"}
        leaves = {key.one for key in wanted if key.kind == "leaf_rail"}
        get = self._leaves.get
        for number, place in enumerate(self._places):
            a, b, _ = place
            if a in names or b in names or (leaves and (get(a) in leaves or get(b) in leaves)):
                for key in self.of(place):
                    own = through.get(key)
                    if own is not None:
                        own.append(number)
        return through

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
