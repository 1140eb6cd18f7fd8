"""Which rounds a run measures: as many as its budget pays for, the longest untested first.

Pure: from a fleet's numbered rounds and a plain `Past` to the rounds of this run. The seed breaks
ties only, so that the same seed and the same past give the same rounds in the same order.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.fabric.schedule import (
    Circle,
    Rounds,
    default_rounds,
    fill,
    frame_of,
    nobody_sits_out,
    ordered,
    rounds_among,
)
from preflight.history.run_record import Past

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.schedule import Frame
    from preflight.history.run_record import Cost


IN_LEAF, IN_LEAF_SHARE = 2, 3
"""Rounds inside of leaves per run, and at most one in three: they tell a node from its uplink."""


def choose(frame: Frame, past: Past, rounds: int, seed: int) -> tuple[int, ...]:
    """Choose rounds by number: one that holds a suspected pair, some inside of leaves, the oldest.

    Of rounds equally old those come first whose leaves were longest not joined, then the seed says.
    """
    queue = _Queue(frame, past, seed)
    chosen = queue.take_suspected(past) if rounds else []
    chosen += queue.take(min(reserved(frame, rounds), rounds - len(chosen)), {-1})
    return (*chosen, *queue.take(rounds - len(chosen)))


def reserved(frame: Frame, rounds: int) -> int:
    """How many of a run's rounds are inside of leaves at least."""
    across = len(frame.numbers) - frame.in_leaf
    return min(IN_LEAF, rounds // IN_LEAF_SHARE, frame.in_leaf) if across else 0


class _Queue:
    """Rounds not yet chosen, the oldest of each span of leaves in front."""

    def __init__(self, frame: Frame, past: Past, seed: int) -> None:
        self._frame = frame
        self._now = past.runs + 1
        self._age = dict.fromkeys(frame.numbers, 0)
        self._age.update((n, past.done[n].run) for n in frame.numbers if n in past.done)
        shuffled = list(frame.numbers)
        random.Random(seed).shuffle(shuffled)  # noqa: S311  an order that a seed repeats, no secret
        self._place = {number: at for at, number in enumerate(shuffled)}
        self._spans: dict[int, list[int]] = {}
        self._joined: dict[int, int] = {}
        for number in sorted(frame.numbers, key=self._old_first, reverse=True):
            span = frame.span(number)
            self._spans.setdefault(span, []).append(number)
            self._joined[span] = max(self._joined.get(span, 0), self._age[number])

    def _old_first(self, number: int) -> tuple[int, int]:
        return self._age[number], self._place[number]

    def take(self, count: int, only: set[int] | None = None) -> list[int]:
        """Take the longest untested; `only` from these spans."""
        taken: list[int] = []
        for _ in range(count):
            heads = [
                (self._age[left[-1]], self._joined[span], self._place[left[-1]], span)
                for span, left in self._spans.items()
                if left and (only is None or span in only)
            ]
            if not heads:
                break
            span = min(heads)[-1]
            taken.append(self._spans[span].pop())
            self._joined[span] = self._now
        return taken

    def take_suspected(self, past: Past) -> list[int]:
        """Take the longest untested of the rounds that hold a suspected pair, if there is one."""
        held: dict[int, int] = {}
        for a, b in past.suspects:
            try:
                number = self._frame.holding(a, b)
            except KeyError:
                continue  # a name that is not of this fleet
            if a != b and number in self._age:
                held[number] = held.get(number, 0) + 1
        if not held:
            return []
        number = min(held, key=lambda one: (self._age[one], -held[one], self._place[one]))
        span = self._frame.span(number)
        self._spans[span].remove(number)
        self._joined[span] = self._now
        return [number]


MARGIN = 0.9
"""Of a budget, what is planned for: a sweep that ends too late has pairs without a turn."""

_SHORTEST_ROUND_S = 0.01

Extent = int | Literal["auto", "exhaustive"]
"""What the operator asked for: a number of rounds, all of them, or what fits."""


class Planned(Struct, frozen=True, kw_only=True):
    """The rounds of one run, over *all* nodes of the fleet."""

    rounds: Rounds
    numbers: tuple[int, ...] = ()
    """The rounds by their number in the fleet's frame; none where all pairs are measured."""
    total: int = 0
    """How many rounds together hold every pair."""
    seed: int = 0
    leaves: dict[str, str] = {}
    """Node name → its leaf switch, where that is known."""
    topology: str = ""
    """Where `leaves` come from."""
    earlier: dict[str, tuple[float, ...]] = {}
    """What pairs of a fleet without peers reached in earlier runs, GB/s (see `compare`)."""
    units: dict[str, tuple[float, ...]] = {}
    """What devices that may have no peers reached in earlier runs (`burn.own_past`)."""


def plan(
    nodes: Sequence[str],
    leaves: Mapping[str, str],
    *,
    extent: Extent,
    seed: int,
    past: Past | None,
    budget_s: float,
    cost: Cost,
    topology: str = "",
) -> Planned:
    """Choose and lay out the rounds of one run. `nodes` is the fleet in order.

    `auto` is what fits into the budget by what a round and all else `cost`; without a past no more
    than the usual number.
    """
    frame, every = frame_of_fleet(nodes, leaves), rounds_among(len(nodes))
    most = every if past is not None else default_rounds(len(nodes))
    wanted = rounds_wanted(extent, every, fits=min(most, rounds_that_fit(budget_s, cost)))
    known = past or Past()
    numbers: tuple[int, ...] = ()
    if wanted >= every:
        # A circle of nodes needs the fewest rounds, whatever the sizes of the leaves.
        circle = Circle(sorted(nodes))
        tested = known if isinstance(frame, Circle) else Past()
        rounds = lay_out(circle, choose(circle, tested, every, seed), nodes)
    else:
        numbers = choose(frame, known, wanted, seed)
        rounds = nobody_sits_out(fill(lay_out(frame, numbers, nodes), nodes), nodes)
    return Planned(
        rounds=rounds,
        numbers=numbers,
        total=len(frame.numbers) if wanted < every else every,
        seed=seed,
        leaves=dict(leaves),
        topology=topology,
        earlier=dict(known.speeds) if wanted >= every else {},
        units=dict(known.units),
    )


def frame_of_fleet(nodes: Sequence[str], leaves: Mapping[str, str]) -> Frame:
    """Number the rounds of a fleet the same way however the operator listed its nodes."""
    return frame_of(sorted(nodes), leaves)


def rounds_wanted(extent: Extent, every: int, *, fits: int) -> int:
    """How many rounds: what was asked for, else what fits; one at least where there are any."""
    if extent == "exhaustive":
        return every
    return max(min(fits if extent == "auto" else extent, every), min(1, every))


def rounds_that_fit(budget_s: float, cost: Cost) -> int:
    """How many rounds a budget pays for, beside all else; at least 1."""
    left_s = budget_s * MARGIN - cost.other_s
    return max(1, int(left_s / max(cost.round_s, _SHORTEST_ROUND_S)))


def within(rounds: Rounds, nodes: Sequence[str]) -> Rounds:
    """Keep the pairs of these nodes, in their order: of rounds that another run was to measure."""
    place = {name: at for at, name in enumerate(nodes)}
    return tuple(
        tuple(ordered(pair, place.__getitem__) for pair in around if place.keys() >= {*pair})
        for around in rounds
    )


def lay_out(frame: Frame, numbers: Sequence[int], nodes: Sequence[str]) -> Rounds:
    """Make the rounds of these numbers, with nodes and pairs in fleet order."""
    place = {name: at for at, name in enumerate(nodes)}
    return tuple(
        tuple(
            sorted(
                (ordered(pair, place.__getitem__) for pair in frame.pairs(number)),
                key=lambda pair: place[pair[0]],
            )
        )
        for number in numbers
    )
