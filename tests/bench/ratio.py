"""Speed as ratios: two ways of doing the same, taken in turns, so that a busy machine hits both."""

from __future__ import annotations

import random
import statistics
import time
from math import comb
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

_CONFIDENCE = 0.95
_DRAWS = 4000


class Spread(Struct, frozen=True):
    """A median and what it lies between: the extremes, or an interval where a row says so."""

    median: float
    low: float
    high: float


class Bound(Struct, frozen=True):
    """What the project promises of a row's value."""

    kind: Literal["at most", "at least"]
    value: float

    def holds(self, seen: Spread) -> bool:
        """Whether the median keeps the promise."""
        if self.kind == "at most":
            return seen.median <= self.value
        return seen.median >= self.value

    @property
    def words(self) -> str:
        """As the table says it."""
        return f"{self.kind} {self.value:g}"


class Band(Struct, frozen=True):
    """Where the project promises a row's interval to reach into: so close is as good as equal."""

    low: float
    high: float
    kind: Literal["overlaps"] = "overlaps"

    def holds(self, seen: Spread) -> bool:
        """Whether the interval and the band have a value in common."""
        return seen.low <= self.high and seen.high >= self.low

    @property
    def words(self) -> str:
        """As the table says it."""
        return f"overlaps {self.low:g} to {self.high:g}"


class Row(Struct, frozen=True, kw_only=True):
    """One comparison: `value` is made of the runs of both sides, pair by pair."""

    id: str
    what: str
    ours: Spread | None = None
    theirs: Spread | None = None
    """Of both None: nothing is compared, the value stands for itself."""
    unit: str
    """Of `ours` and `theirs`: "s" or "MiB"."""
    value: Spread
    value_unit: str = "times"
    runs: int
    bound: Bound | Band | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the bound holds; None where nothing was promised."""
        return None if self.bound is None else self.bound.holds(self.value)


def in_turns(runs: int, *works: Callable[[], T]) -> list[list[T]]:
    """Do each work `runs` times, in turns, every other turn backwards; the results by work."""
    results: list[list[T]] = [[] for _ in works]
    for turn in range(runs):
        order = range(len(works)) if turn % 2 == 0 else reversed(range(len(works)))
        for place in order:
            results[place].append(works[place]())
    return results


def seconds(work: Callable[[], object]) -> Callable[[], float]:
    """The same work, answering with its wall time."""

    def timed() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return timed


def extremes(values: Sequence[float]) -> Spread:
    """Median, least and greatest."""
    return Spread(statistics.median(values), min(values), max(values))


def interval(values: Sequence[float]) -> Spread:
    """Median with its 95 % interval: between order statistics, whatever the distribution is.

    Source: the sign test; the k-th from either end brackets the median with 1 - 2 P(B < k),
    B binomial(n, 1/2).
    """
    ordered, number = sorted(values), len(values)
    outside, k = 0.0, 0
    while k < number // 2:
        outside += comb(number, k) / 2**number
        if 2 * outside > 1 - _CONFIDENCE:
            break
        k += 1
    edge = max(0, k - 1)
    return Spread(statistics.median(values), ordered[edge], ordered[-1 - edge])


def times(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """How many times theirs ours takes, turn by turn."""
    return extremes([mine / other for mine, other in zip(ours, theirs, strict=True)])


def faster(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """How many times faster ours is, turn by turn."""
    return times(theirs, ours)


def ratio_of_medians(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """The median of ours by that of theirs, with the 95 % interval of a bootstrap.

    Turns are drawn whole, both sides together: what slowed a turn down hit both. Same seed always.
    """
    turns = list(zip(ours, theirs, strict=True))
    draw = random.Random(1)  # noqa: S311 - no secret
    ratios = sorted(_of_medians(draw.choices(turns, k=len(turns))) for _ in range(_DRAWS))
    tail = int(_DRAWS * (1 - _CONFIDENCE) / 2)
    return Spread(_of_medians(turns), ratios[tail], ratios[-1 - tail])


def _of_medians(turns: Sequence[tuple[float, float]]) -> float:
    ours, theirs = zip(*turns, strict=True)
    return float(statistics.median(ours) / statistics.median(theirs))
