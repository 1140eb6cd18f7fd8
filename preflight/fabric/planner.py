"""Which rounds a run measures: as many as its budget pays for, the longest untested first.

Pure: from a fleet's numbered rounds and a plain `Past` to the rounds of this run. The seed breaks
ties only, so that the same seed and the same past give the same rounds in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.fabric.choosing import choose
from preflight.fabric.schedule import (
    Circle,
    Rounds,
    default_rounds,
    fill,
    frame_of,
    nobody_sits_out,
    rounds_among,
)
from preflight.history.past import Past

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.schedule import Frame, Pairing
    from preflight.history.past import Cost

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
    if wanted >= every:
        # A circle of nodes needs the fewest rounds, whatever the sizes of the leaves.
        circle = Circle(sorted(nodes))
        known = past if past is not None and isinstance(frame, Circle) else Past()
        rounds = lay_out(circle, choose(circle, known, every, seed), nodes)
        return Planned(
            rounds=rounds,
            total=every,
            seed=seed,
            leaves=dict(leaves),
            topology=topology,
            earlier=dict(past.speeds) if past else {},
            units=dict(past.units) if past else {},
        )
    numbers = choose(frame, past or Past(), wanted, seed)
    return Planned(
        rounds=nobody_sits_out(fill(lay_out(frame, numbers, nodes), nodes), nodes),
        numbers=numbers,
        total=len(frame.numbers),
        seed=seed,
        leaves=dict(leaves),
        topology=topology,
        units=dict(past.units) if past else {},
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
        tuple(_ordered(pair, place) for pair in around if pair[0] in place and pair[1] in place)
        for around in rounds
    )


def lay_out(frame: Frame, numbers: Sequence[int], nodes: Sequence[str]) -> Rounds:
    """Make the rounds of these numbers, with nodes and pairs in fleet order."""
    place = {name: at for at, name in enumerate(nodes)}
    return tuple(
        tuple(
            sorted(
                (_ordered(pair, place) for pair in frame.pairs(number)),
                key=lambda pair: place[pair[0]],
            )
        )
        for number in numbers
    )


def _ordered(pair: Pairing, place: Mapping[str, int]) -> Pairing:
    a, b = sorted(pair, key=place.__getitem__)
    return a, b
