"""Each pair against its peers in three numbers: bandwidth, latency, and how often it spikes.

For the eye alone: who is condemned is decided elsewhere, by tests with a known error rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fabric.measure import busbw_gbs
from preflight.fabric.samples import PairState
from preflight.fabric.words import gbs, size, time_us
from preflight.report.picture.against import Against, Turn
from preflight.report.picture.bursts import against_others, counted
from preflight.stats.leave_out import LeaveOut
from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.fabric.digest import Digest
    from preflight.fabric.observed import Observed

MANY = 64
"""Nodes above which leaving out a pair's own two changes no median that an eye could see."""

CUT_SHORT = 999.0
"""The ratio of a pair whose time was up before it came to the sizes that others reached."""


class Cell(Struct, frozen=True, kw_only=True):
    """One pair on one rail in one round, as it is drawn."""

    a: str
    b: str
    rail: int
    round: int
    state: PairState
    error: str = ""
    bandwidth: Against | None = None
    latency: Against | None = None
    spikes: Against | None = None
    late: Against | None = None

    @property
    def worst(self) -> float:
        """The largest of its ratios; infinite where it gave no result."""
        if self.state != "measured":
            return math.inf
        each = (self.bandwidth, self.latency, self.spikes, self.late)
        return max((one.ratio for one in each if one and one.ratio is not None), default=0.0)


class Panel(Struct, frozen=True):
    """One of the three numbers: what it is called, where it is, and how it is said."""

    title: str
    pick: Callable[[Cell], Against | None]
    say: Callable[[Against], str]


def _say_bandwidth(one: Against) -> str:
    peers = f", peers {gbs(one.peers)}" if one.peers is not None and one.stands_out else ""
    return f"{gbs(one.value)} at {size(one.size_bytes)}{peers}"


def _say_latency(one: Against) -> str:
    peers = f", peers {time_us(one.peers)}" if one.peers is not None and one.stands_out else ""
    return f"{time_us(one.value)} at {size(one.size_bytes)}{peers}"


def _say_spikes(one: Against) -> str:
    longest = f", longest {time_us(one.longest_us)}"
    if one.peers is None or not one.stands_out:
        return f"{one.value:g} in {one.of}{longest}"
    return f"{one.value:g} in {one.of} operations, of its peers {one.peers:.2g}{longest}"


def _say_late(one: Against) -> str:
    peers = f", of its peers {one.peers:.2g}" if one.peers is not None and one.stands_out else ""
    return f"{one.value:g} in {one.of}{peers}"


BANDWIDTH = Panel("Bandwidth, largest size (GB/s)", lambda cell: cell.bandwidth, _say_bandwidth)
LATENCY = Panel("Latency, smallest size (median)", lambda cell: cell.latency, _say_latency)
SPIKES = Panel("Spikes (bursts over 5 medians)", lambda cell: cell.spikes, _say_spikes)
PANELS = (BANDWIDTH, LATENCY, SPIKES)
LATE = Panel("Late starts (one end waited)", lambda cell: cell.late, _say_late)
"""Drawn only where there are any: a host that is late, or a loss in one direction."""


def cells(observed: Observed) -> tuple[Cell, ...]:
    """Compare every pair that was tried with those that share no node with it."""
    by_turn: dict[Turn, list[Digest]] = {}
    for digest in observed.digests:
        by_turn.setdefault((digest.a, digest.b, digest.rail, digest.round), []).append(digest)
    many = len(observed.nodes) > MANY
    large = {turn: max(_ladder(own), key=lambda d: d.size_bytes) for turn, own in by_turn.items()}
    small = {turn: min(_ladder(own), key=lambda d: d.size_bytes) for turn, own in by_turn.items()}
    bandwidth = _medians(
        large, many=many, usual=median([d.size_bytes for d in large.values()] or [0])
    )
    latency = _medians(small, many=many)
    counts = {turn: counted(own) for turn, own in by_turn.items()}
    spikes, late = against_others(counts), against_others(counts, late=True)
    found = []
    for tried in observed.tried:
        turn = (tried.a, tried.b, tried.rail, tried.round)
        found.append(
            Cell(
                a=tried.a,
                b=tried.b,
                rail=tried.rail,
                round=tried.round,
                state=tried.state,
                error=tried.error,
                bandwidth=_as_speed(bandwidth.get(turn)),
                latency=latency.get(turn),
                spikes=spikes.get(turn),
                late=late.get(turn),
            )
        )
    return tuple(found)


def _ladder(own: Sequence[Digest]) -> Sequence[Digest]:
    return [digest for digest in own if digest.phase == "ladder"] or own


def _medians(
    chosen: Mapping[Turn, Digest], *, many: bool, usual: float = 0.0
) -> dict[Turn, Against]:
    """Each median time against that of the peers at the same size.

    A pair whose time was up before the size that is `usual` is worse than any ratio says.
    """
    by_size: dict[int, list[tuple[Turn, float]]] = {}
    for turn, digest in chosen.items():
        by_size.setdefault(digest.size_bytes, []).append((turn, digest.p50_us))
    found: dict[Turn, Against] = {}
    for size_bytes, own in by_size.items():
        peers = _peers(own, many=many)
        for turn, p50_us in own:
            peers_us = peers(turn)
            ratio = p50_us / peers_us if peers_us else None
            ratio = CUT_SHORT if size_bytes < usual else ratio
            found[turn] = Against(p50_us, peers_us, ratio, size_bytes)
    return found


def _peers(own: Sequence[tuple[Turn, float]], *, many: bool) -> Callable[[Turn], float | None]:
    """Give the median of the pairs that touch neither node, else of its own other rails."""
    if many:
        all_us = median([value for _, value in own])
        return lambda _turn: all_us
    others = LeaveOut([(value, turn[:2]) for turn, value in own])
    apart = {pair: others.median(pair) for pair in dict.fromkeys(turn[:2] for turn, _ in own)}

    def of(turn: Turn) -> float | None:
        found = apart[turn[:2]]
        if found is not None:
            return found
        rails = [value for other, value in own if other[:2] == turn[:2] and other[2] != turn[2]]
        return median(rails) if rails else None

    return of


def _as_speed(one: Against | None) -> Against | None:
    if one is None:
        return None
    peers = None if one.peers is None else busbw_gbs(one.size_bytes, one.peers / 1e6)
    speed = busbw_gbs(one.size_bytes, one.value / 1e6)
    return Against(speed, peers, one.ratio, one.size_bytes)
