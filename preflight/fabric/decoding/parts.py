"""The parts of a fabric that can be at fault, and the parts through which each observation goes.

A sweep of 4,096 nodes with 8 rails has 786,432 digests. So a meeting (one pair on one rail in one
round) is a row number, and all values of a digest are read in one pass.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from preflight.core.statistics import grouped
from preflight.fabric.decoding.culprit import Component, PartKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from preflight.fabric.observed import Digest, Observed, PairResult
    from preflight.fabric.samples import MeetingKey, Phase

    SizePhase = tuple[int, Phase]


PENALTY = {"endpoint": 0.0, "node": 2.0, "leaf_rail": 2.0, "path": 4.0}
"""In nats: if the samples leave a choice, the part that fails more often is preferred.

Sparse noisy-OR with explaining away; the values were chosen on simulated fabrics.
"""


class Key(NamedTuple):
    """A part, cheap to make by the million; outside this package it is a `Component`."""

    kind: PartKind
    name: str
    """Of the node or leaf; of a path's first node."""
    partner: str = ""
    """Of a path's second node."""
    rail: int = -1


ALL_RAILS = -1
"""The rail of an observation that was made on most rails at once."""

WHOLE_NODE = -2
"""The rail of a node's key if only events on most of its rails at once count.

A late host is late on all rails at once: single rails without events do not clear it.
"""


def same_node(key: Key, other: Key) -> bool:
    """Whether both are the same node, judged in two ways."""
    return key.kind == "node" and key[:3] == other[:3]


class Place(NamedTuple):
    """Where an observation was made; `b` is empty for one node alone (a late host)."""

    a: str
    b: str
    rail: int


class Parts:
    """The parts of one fabric that observations can distinguish."""

    def __init__(self, places: Sequence[Place], leaves: Mapping[str, str]) -> None:
        self._places = places
        self._leaves = leaves
        self._many_rails = len(set(map(itemgetter(2), places)) - {ALL_RAILS}) > 1
        self._nodes_of: dict[str, list[str]] = defaultdict(list)
        for name, leaf in leaves.items():
            self._nodes_of[leaf].append(name)

    @property
    def tested(self) -> int:
        """How many parts could have been named, for the probability of a false alarm."""
        pairs = set(map(itemgetter(0, 1), self._places))
        nodes = {name for pair in pairs for name in pair}
        rails = set(map(itemgetter(2), self._places))
        return (len(nodes) + len(pairs)) * (1 + len(rails) if len(rails) > 1 else 1)

    def keys_of(self, place: Place) -> list[Key]:
        """All parts that one observation goes through."""
        a, b, rail = place
        ends = [name for name in (a, b) if name]
        keys = [Key("node", name) for name in ends]
        if b:
            keys.append(Key("path", a, b))
        if rail == ALL_RAILS:
            return keys + [Key("node", name, rail=WHOLE_NODE) for name in ends]
        if self._many_rails:
            keys += [Key("endpoint", name, rail=rail) for name in ends]
            if b:
                keys.append(Key("path", a, b, rail))
        leaves = dict.fromkeys(leaf for name in ends if (leaf := self._leaves.get(name)))
        if b and len(self._nodes_of) > 1:
            rails = rail if self._many_rails else -1
            keys += [Key("leaf_rail", leaf, rail=rails) for leaf in leaves]
        return keys

    def suspects(self, outliers: Iterable[int]) -> dict[Key, list[int]]:
        """Return parts of outlying observations, each with all observations through it."""
        keys = dict.fromkeys(key for row in outliers for key in self.keys_of(self._places[row]))
        names = {name for key in keys for name in self.component(key).nodes}
        by_node = grouped(
            (name, row)
            for row, place in enumerate(self._places if names else ())
            for name in place[:2]
            if name in names
        )
        return {key: self._rows_through(key, by_node) for key in keys}

    def _rows_through(self, key: Key, by_node: Mapping[str, list[int]]) -> list[int]:
        """Return those observations of a part's nodes that go through the part."""
        if key.kind == "node" and key.rail != WHOLE_NODE:
            return by_node[key.name]
        if key.kind == "node":
            return [row for row in by_node[key.name] if self.on_all_rails(row)]
        through: Iterable[int] = by_node.get(key.name, ())
        if key.kind == "leaf_rail":
            members = (by_node.get(name, ()) for name in self._nodes_of[key.name])
            through = (row for row in sorted(set().union(*members)) if self._places[row].b)
            through = (row for row in through if not self.on_all_rails(row))
        if key.rail >= 0:
            through = (row for row in through if self._places[row].rail == key.rail)
        if key.kind == "path":
            through = (row for row in through if self._places[row].b == key.partner)
        return list(through)

    def members(self, key: Key) -> list[Key]:
        """Return the parts within a part: a leaf's nodes, a node's endpoints."""
        if key.kind == "leaf_rail":
            kind: PartKind = "endpoint" if self._many_rails else "node"
            names = (name for name in self._nodes_of[key.name] if name in self._rails_of)
            return [Key(kind, name, rail=key.rail) for name in names]
        if key.kind == "node" and self._many_rails and key.rail != WHOLE_NODE:
            return [Key("endpoint", key.name, rail=rail) for rail in self._rails_of[key.name]]
        return []

    def on_all_rails(self, row: int) -> bool:
        """Whether an observation was made on all rails together."""
        return self._places[row].rail == ALL_RAILS

    @cached_property
    def _rails_of(self) -> dict[str, set[int]]:
        """The rails on which each node was measured."""
        rails: dict[str, set[int]] = defaultdict(set)
        for a, b, rail in self._places:
            if rail != ALL_RAILS:
                rails[a].add(rail)
                rails[b].add(rail)
        return rails

    def pairs(self, through: Iterable[int]) -> tuple[tuple[str, str], ...]:
        """Return the pairs of nodes of these observations."""
        places = (self._places[row] for row in through)
        return tuple(dict.fromkeys((place.a, place.b) for place in places if place.b))

    def penalty(self, key: Key) -> float:
        """Return a part's penalty as an explanation; with one rail the node is its own endpoint."""
        if key.kind == "node" and not self._many_rails:
            return 0.0
        return PENALTY[key.kind]

    def component(self, key: Key) -> Component:
        """The part as reports name it."""
        rail = key.rail if key.rail >= 0 else None
        if key.kind == "leaf_rail":
            return Component(key.kind, tuple(self._nodes_of[key.name]), rail, leaf=key.name)
        ends = (key.name, key.partner) if key.kind == "path" else (key.name,)
        return Component(key.kind, ends, rail)


class Exposures(Struct):
    """A row for one pair, or one host of it, on one rail (or on all together) in one round."""

    places: list[Place] = []
    operations: list[int] = []
    loaded_s: list[float] = []
    events: list[int] = []
    worst_us: list[float] = []

    def add(
        self, places: Sequence[Place], operations: Sequence[int], loaded_s: Sequence[float]
    ) -> int:
        """Add rows without events; return the number of the first."""
        first = len(self.places)
        self.places.extend(places)
        self.operations.extend(operations)
        self.loaded_s.extend(loaded_s)
        self.events.extend([0] * len(places))
        self.worst_us.extend([0.0] * len(places))
        return first

    def count(self, row: int, worst_us: float) -> None:
        """Count one more event in a row."""
        self.events[row] += 1
        self.worst_us[row] = max(self.worst_us[row], worst_us)


class Column(NamedTuple):
    """Times of one size and phase, and the row of each."""

    rows: list[int]
    p50_us: list[float]
    best_us: list[float]


class Meetings(NamedTuple):
    """The meetings in order of first appearance, and what was measured in each."""

    places: list[Place]
    rounds: list[int]
    operations: list[int]
    """Of all sizes together, and so are their seconds."""
    loaded_s: list[float]
    by_pair: list[list[int]]
    """The rows of one pair in one round: its rails."""
    columns: dict[SizePhase, Column]
    outlying: list[tuple[int, Digest]]
    """Digests with outlying operations, and the row of each."""

    def split(self, first_retest: int) -> tuple[Meetings, Meetings]:
        """Return the meetings of the scheduled rounds, and those of the retests."""
        parts: tuple[list[list[int]], list[list[int]]] = ([], [])
        for rows in self.by_pair:
            parts[self.rounds[rows[0]] >= first_retest].append(rows)
        return self._replace(by_pair=parts[0]), self._replace(by_pair=parts[1])


def read_meetings(observed: Observed) -> Meetings:
    """Sort a fabric's digests in one pass."""
    rows: dict[MeetingKey, int] = {}
    operations: list[int] = []
    loaded_s: list[float] = []
    columns: dict[SizePhase, Column] = defaultdict(lambda: Column([], [], []))
    outlying: list[tuple[int, Digest]] = []
    for digest in usable(observed):
        row = rows.setdefault(digest.key, len(rows))
        if row == len(operations):
            operations.append(0)
            loaded_s.append(0.0)
        operations[row] += digest.operations
        loaded_s[row] += digest.loaded_s
        times_rows, p50_us, best_us = columns[digest.size_bytes, digest.phase]
        times_rows.append(row)
        p50_us.append(digest.p50_us)
        best_us.append(digest.best_us)
        if digest.standouts:
            outlying.append((row, digest))
    places = [Place(a, b, rail) for a, b, rail, _ in rows]
    rounds = [number for _, _, _, number in rows]
    by_pair = grouped(((a, b, number), row) for (a, b, _, number), row in rows.items())
    return Meetings(places, rounds, operations, loaded_s, list(by_pair.values()), columns, outlying)


def usable(observed: Observed) -> Iterator[Digest]:
    """Yield the digests of pairs that were measured completely."""
    unusable = {result.key for result in observed.tried if result.state != "measured"}
    return (digest for digest in observed.digests if digest.key not in unusable)


class Trials:
    """All that was tried, by node and by rail."""

    def __init__(
        self, observed: Observed, *, suspected: Collection[str], blamed: Collection[str]
    ) -> None:
        """`suspected`: nodes whose trials are needed; `blamed`: nodes that clear no partner."""
        self._by_node: dict[str, list[PairResult]] = defaultdict(list)
        self._good: dict[int, set[str]] = defaultdict(set)
        for result in observed.tried if suspected else ():
            a, b = result.a, result.b
            if a in suspected:
                self._by_node[a].append(result)
            if b in suspected:
                self._by_node[b].append(result)
            if result.state == "measured" and a not in blamed and b not in blamed:
                self._good[result.rail].update((a, b))

    def of_node(self, name: str, rail: int | None) -> list[PairResult]:
        """Return one node's trials, on one rail or on all, in order."""
        return [result for result in self._by_node[name] if rail in (None, result.rail)]

    def good_nodes(self, rail: int | None) -> set[str]:
        """Return nodes that were fine there with another node, both not blamed."""
        return self._good[rail] if rail is not None else set().union(*self._good.values())


FALSE_ALARM = 1e-3
"""Accepted probability that a good fabric has any part named, over all tests of a run."""

SYMPTOM_SHARE = FALSE_ALARM / 4
"""Bandwidth, latency, spikes, late hosts: each gets its share of that."""
