"""Noise of a real fleet: blocks of its recorded healthy sweeps, drawn again and again.

A block holds consecutive operations of the pairs that ran at the same time, taken from the same
place of each: a burst that hit several of them when it was recorded hits several here. Pairs keep
the spread of speeds that recorded pairs have.
"""

from __future__ import annotations

from array import array
from functools import cached_property
from math import log, sqrt
from statistics import fmean, pstdev, pvariance
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from preflight.errors import UsageError
from tests.simulate.noise import Unrest
from tests.simulate.stream import Rung, Stream, middle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from random import Random

    from preflight.fabric.samples import Backend, End, Sweep, Timing

KIB, MIB = 1 << 10, 1 << 20

PROGRAM = (
    Rung(8, 1000),
    Rung(64 * KIB, 50),
    Rung(1 * MIB, 20),
    Rung(4 * MIB, 10),
    Rung(256 * KIB, 150, "soak"),
)
"""What the shipped plan comes to on shared CPUs: time bounds the smallest size and the soak."""

BLOCK = 25
"""Operations drawn in one piece: a stall of the recorded machine and what follows it."""

_LEAST_US = 0.5
_TIMES = 2
"""So many columns of a stream are durations of operations; the rest are gaps."""

_Round = list[list[Stream]]
"""What one recorded round holds: by pair, by size."""


class Columns(Struct, frozen=True):
    """One size of one pair, whole us: the first end's, and by how much the second's differ."""

    first: tuple[int, ...]
    skew: tuple[int, ...]
    gap: tuple[int, ...]
    gap_skew: tuple[int, ...]

    def stream(self) -> Stream:
        """Both ends' columns; no duration is zero."""
        return Stream(
            array("d", (max(_LEAST_US, one) for one in self.first)),
            _sums(self.first, self.skew),
            array("d", self.gap),
            _sums(self.gap, self.gap_skew),
        )


class Recording(Struct, frozen=True):
    """Healthy sweeps: by round, by pair that ran in it, by size."""

    what: str
    """Where, when and of what it was made."""
    sizes: tuple[int, ...]
    rounds: tuple[tuple[tuple[Columns, ...], ...], ...]


def record(sweeps: list[Sweep], what: str) -> Recording:
    """Keep every iteration of healthy sweeps; ValueError for a pair that was not measured."""
    sizes = tuple(rung.size_bytes for rung in sweeps[0].ladder)
    rounds = []
    for sweep in sweeps:
        for number in range(len(sweep.rounds)):
            around = [pair for pair in sweep.pairs if pair.round == number]
            rounds.append(tuple(_pair(pair.first, pair.second, len(sizes)) for pair in around))
    return Recording(what, sizes, tuple(rounds))


def load(file: Path) -> Recorded:
    """Read a recording; UsageError where the file holds none."""
    try:
        return Recorded(msgspec.json.decode(file.read_bytes(), type=Recording))
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"{file} is no recording of healthy sweeps ({error}): "
            "make one with python -m tests.bench.record"
        ) from error


class Recorded:
    """Takes made of blocks; the spread between pairs is that of the recorded pairs."""

    name, net = "recorded", "tcp eth0"
    backend: Backend = "gloo"
    unrest = Unrest()

    def __init__(self, recording: Recording, program: tuple[Rung, ...] = PROGRAM) -> None:
        self.recording, self.program = recording, program
        self.lanes = min(len(around) for around in recording.rounds)
        self._rounds: list[_Round] = [
            [[columns.stream() for columns in pair] for pair in around]
            for around in recording.rounds
        ]
        self._levels = {
            id(around): [[middle(sorted(_network(one))) for one in pair] for pair in around]
            for around in self._rounds
        }
        """Round → median by pair, by size."""

    def take(self, random: Random) -> tuple[tuple[Stream, ...], ...]:
        """Lanes of the speed of one recorded round's pairs, made of blocks of all rounds."""
        home = random.choice(self._rounds)
        lanes: list[list[Stream]] = [[] for _ in range(self.lanes)]
        for rung in self.program:
            at = self.recording.sizes.index(rung.size_bytes)
            blocks = list(self._blocks(random, at, rung.operations))
            for lane, streams in enumerate(lanes):
                level = self._levels[id(home)][lane][at]
                streams.append(self._joined(blocks, lane, at, level))
        return tuple(map(tuple, lanes))

    def _blocks(self, random: Random, at: int, wanted: int) -> Iterator[tuple[_Round, range]]:
        """Runs of consecutive operations, each of some recorded round."""
        while wanted > 0:
            around = random.choice(self._rounds)
            recorded = min(len(pair[at].first) for pair in around)
            length = min(BLOCK, recorded, wanted)
            start = random.randrange(recorded - length + 1)
            yield around, range(start, start + length)
            wanted -= length

    def _joined(
        self, blocks: Sequence[tuple[_Round, range]], lane: int, at: int, level: float
    ) -> Stream:
        """One lane's blocks in a row, all brought to one median: a pair is as fast as it is."""
        columns: tuple[array[float], ...] = tuple(array("d") for _ in range(4))
        for around, places in blocks:
            factor = level / self._levels[id(around)][lane][at]
            for number, (column, own) in enumerate(zip(columns, around[lane][at], strict=True)):
                scale = factor if number < _TIMES else 1.0
                column.extend(scale * own[place] for place in places)
        return Stream(*columns)

    def wire_us(self, size_bytes: int) -> float:
        """By the recorded median at the largest size; small sizes are all latency."""
        largest = self.recording.sizes[-1]
        return self._median_us[largest] * size_bytes / largest

    def typical_us(self, size_bytes: int) -> float:
        """The recorded median."""
        return self._median_us[size_bytes]

    def log_sd(self, size_bytes: int) -> float:
        """Between the medians of recorded pairs, and between the halves of one."""
        medians = [log(middle(sorted(_network(one)))) for one in self._of(size_bytes)]
        within = [
            abs(log(middle(sorted(network[::2])) / middle(sorted(network[1::2]))))
            for network in map(_network, self._of(size_bytes))
        ]
        return sqrt(pstdev(medians) ** 2 + middle(sorted(within)) ** 2)

    def tail(self, size_bytes: int, over_us: float) -> float:
        """Share of the recorded operations, and one more than was seen."""
        counts = [_longer(one, over_us) for one in self._of(size_bytes)]
        return (sum(counts) + 1) / (sum(len(one.first) for one in self._of(size_bytes)) + 1)

    def dispersion(self, over_us: float) -> float:
        """Over recorded pairs, all sizes together."""
        counts = [
            sum(_longer(one, over_us) for one in pair) for around in self._rounds for pair in around
        ]
        return max(1.0, pvariance(counts) / max(fmean(counts), 1 / len(counts)))

    @cached_property
    def _median_us(self) -> dict[int, float]:
        return {
            size: middle(sorted(time for one in self._of(size) for time in _network(one)))
            for size in self.recording.sizes
        }

    def _of(self, size_bytes: int) -> list[Stream]:
        at = self.recording.sizes.index(size_bytes)
        return [pair[at] for around in self._rounds for pair in around]


def _network(one: Stream) -> list[float]:
    return [min(pair) for pair in zip(one.first, one.second, strict=True)]


def _longer(one: Stream, over_us: float) -> int:
    """How many operations took longer than that at either end."""
    return sum(max(ends) > over_us for ends in zip(one.first, one.second, strict=True))


def _sums(one: tuple[int, ...], skew: tuple[int, ...]) -> array[float]:
    return array("d", (max(_LEAST_US, a + b) for a, b in zip(one, skew, strict=True)))


def _pair(first: End | None, second: End | None, sizes: int) -> tuple[Columns, ...]:
    if first is None or second is None or len(first.timings) != sizes:
        raise ValueError("a pair was not measured in full: record healthy sweeps only")
    return tuple(map(_columns, first.timings, second.timings))


def _columns(first: Timing, second: Timing) -> Columns:
    times, gaps = _whole(first.times_us), _whole(first.gaps_us)
    return Columns(
        times,
        tuple(b - a for a, b in zip(times, _whole(second.times_us), strict=True)),
        gaps,
        tuple(b - a for a, b in zip(gaps, _whole(second.gaps_us), strict=True)),
    )


def _whole(values: tuple[float, ...]) -> tuple[int, ...]:
    return tuple(map(round, values))
