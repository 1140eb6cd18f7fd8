"""What a measurement is held against: the others of its node, those of other nodes, floors.

A suspect never sits in the population that it is compared with. Numbers are speeds, so that more
is always better.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Sequence

FEWEST = 2
"""Others; fewer are no yardstick."""

DEVIATIONS, SIGMA = 6.0, 1.4826
"""So many standard deviations off the peers' median, one being 1.4826 MAD for normal noise."""

MOST_UNITS = 512
"""Of more, other nodes are represented by one number each."""


class Bound(NamedTuple):
    """A limit on a speed, and who set it."""

    speed: float
    origin: str
    peers: float | None = None


def among(others: Sequence[float], *, effect: float, scatter: float, where: str) -> Bound | None:
    """The part of the others' speed that is still healthy; None where there are too few.

    Of two others the slower counts, and of any even number the slower of the middle two: one that
    is odd by being fast must not make its neighbours slow.
    """
    if len(others) < FEWEST:
        return None
    middle = _lower_middle(sorted(others))
    share = _share(others, middle, effect, scatter)
    return Bound(middle * share, f"{share:.2g} of the median of {len(others)} {where}", middle)


def _lower_middle(ordered: Sequence[float]) -> float:
    return ordered[(len(ordered) - 1) // 2]


def _share(values: Sequence[float], middle: float, effect: float, scatter: float) -> float:
    """What part of their middle is beyond their scatter, and by an effect that matters."""
    spread = SIGMA * median([abs(math.log(one / middle)) for one in values])
    return min(1 - effect, math.exp(-DEVIATIONS * max(spread, scatter)))


def strictest(bounds: Sequence[Bound | None]) -> Bound | None:
    """The highest of the limits that there are."""
    return max((one for one in bounds if one is not None), default=None, key=lambda one: one.speed)


class Population:
    """The units that are promised to be alike, by node."""

    def __init__(self, of_nodes: dict[str, list[float]]) -> None:
        self._of_nodes = {name: own for name, own in of_nodes.items() if own}
        self._many = sum(map(len, of_nodes.values())) > MOST_UNITS
        self._away: dict[str, Bound | None] = {}
        self._typical: dict[str, float] = {}
        self._ordered: list[float] = []
        self._healthy: float | None = None
        if self._many:
            self._typical = {name: median(own) for name, own in self._of_nodes.items()}
            self._ordered = sorted(self._typical.values())

    def here(self, node: str, place: int, *, effect: float, scatter: float) -> Bound | None:
        """The bound by the others of the same node."""
        own = self._of_nodes[node]
        others = [*own[:place], *own[place + 1 :]]
        return among(others, effect=effect, scatter=scatter, where="others here")

    def away(self, node: str, *, effect: float, scatter: float) -> Bound | None:
        """The bound by the other nodes: a node all of whose parts are slow shows only here."""
        if node not in self._away:
            alone = self._many and len(self._typical) > FEWEST
            find = self._away_of_many if alone else self._away_of_few
            self._away[node] = find(node, effect, scatter)
        return self._away[node]

    def _away_of_few(self, node: str, effect: float, scatter: float) -> Bound | None:
        others = [own for name, own in self._of_nodes.items() if name != node]
        nodes = "another node" if len(others) == 1 else f"{len(others)} other nodes"
        values = [one for own in others for one in own]
        return among(values, effect=effect, scatter=scatter, where=f"others on {nodes}")

    def _away_of_many(self, node: str, effect: float, scatter: float) -> Bound:
        """By one number per node; their scatter is counted once, as one node cannot move it."""
        if self._healthy is None:
            middle = _lower_middle(self._ordered)
            self._healthy = _share(self._ordered, middle, effect, scatter)
        rest, place = len(self._ordered) - 1, (len(self._ordered) - 2) // 2
        own = bisect_left(self._ordered, self._typical[node])
        middle = self._ordered[place + (own <= place)]
        origin = f"{self._healthy:.2g} of the median of {rest} other nodes"
        return Bound(middle * self._healthy, origin, middle)
