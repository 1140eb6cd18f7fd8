"""One size of one pair, iteration by iteration, and its digest in arithmetic of our own."""

from __future__ import annotations

from array import array
from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from preflight.fabric.observed import CUT_MEDIANS
from preflight.fabric.samples import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LARGE_BYTES = 64 << 10
_TAIL_SPARE = 64
"""How many operations may be hit before a percentile reaches below the tail that is kept."""


class Rung(Struct, frozen=True):
    """One size of the program that each pair runs: bytes, how many, and as what."""

    size_bytes: int
    operations: int
    phase: Phase = "ladder"


def checked(program: Iterable[Rung]) -> int:
    """How many operations are large enough for a fault of data to show: each of them is checked."""
    return sum(rung.operations for rung in program if rung.size_bytes >= _LARGE_BYTES)


class Stream(NamedTuple):
    """What both ends timed, us: four columns of one length."""

    first: array[float]
    second: array[float]
    first_gap: array[float]
    second_gap: array[float]


class Hit(NamedTuple):
    """What is added to one operation, at each end and before it, us."""

    first: float = 0.0
    second: float = 0.0
    first_gap: float = 0.0
    second_gap: float = 0.0

    def __add__(self, other: object) -> Hit:
        if not isinstance(other, Hit):
            return NotImplemented
        return Hit(*(one + two for one, two in zip(self, other, strict=True)))


class Template:
    """A healthy stream with its order statistics, to be scaled, shifted and hit many times over."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        network = [min(one, two) for one, two in zip(stream.first, stream.second, strict=True)]
        order = sorted(range(len(network)), key=network.__getitem__)
        self.operations = len(network)
        self.best = network[order[0]]
        self.p50 = middle([network[at] for at in order])
        kept = self.operations - rank(self.operations, 0.99) + 1 + _TAIL_SPARE
        self.tail = [(network[at], at) for at in reversed(order[-kept:])]
        """The longest, longest first, with their places."""
        self.spent = array("d", (0.0, *accumulate(stream.first)))
        self.idle = array("d", (0.0, *accumulate(stream.first_gap)))
        self.spent_second = sum(stream.second)
        cut = CUT_MEDIANS * self.p50
        self.standing_out = [
            at
            for at, (one, two) in enumerate(zip(stream.first, stream.second, strict=True))
            if max(one, two) > cut
        ]


def middle(ordered: Sequence[float]) -> float:
    """The middle of sorted values, or halfway between the two in the middle."""
    half, odd = divmod(len(ordered), 2)
    return ordered[half] if odd else (ordered[half - 1] + ordered[half]) / 2


def rank(count: int, share: float) -> int:
    """Which of `count` sorted values, from 1, is the nearest-rank percentile."""
    return max(1, ceil(share * count))


def stream(rows: Iterable[tuple[float, float, float, float]]) -> Stream:
    """Columns from rows of (first, second, gap before the first, before the second)."""
    columns = tuple(zip(*rows, strict=True))
    return Stream(*(array("d", column) for column in columns))
