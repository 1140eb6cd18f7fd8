"""Each pair against its peers in three numbers: bandwidth, latency, and how often it spikes.

For the eye alone: who is condemned is decided elsewhere. But by the same limits, events and
scatter, or the picture would point at healthy nodes where machines are busy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.fabric.decoding.events import MEDIANS
from preflight.fabric.decoding.numbers import number
from preflight.fabric.decoding.shown import shown
from preflight.fabric.measure import busbw_gbs
from preflight.fabric.samples import PairState
from preflight.fabric.words import gbs, size, time_us
from preflight.report.picture.accused import blamed_turns
from preflight.report.picture.against import Against
from preflight.report.picture.bursts import against_others
from preflight.stats.leave_out import LeaveOut
from preflight.stats.quantiles import median

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from preflight.fabric.decoding.shown import Slower, Turn
    from preflight.fabric.digest import Digest
    from preflight.fabric.observed import Observed
    from preflight.report.picture.accused import Accused

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


BANDWIDTH = Panel("Bandwidth (fastest operations)", lambda cell: cell.bandwidth, _say_bandwidth)
LATENCY = Panel("Latency, smallest size (median)", lambda cell: cell.latency, _say_latency)
LATE = Panel("Late starts (one end waited)", lambda cell: cell.late, _say_late)
"""Drawn only where there are any: a host that is late, or stood still."""


def panels(backend: str) -> tuple[Panel, ...]:
    """Those that are always drawn, with the rule that counts a spike on that kind of network."""
    over = f"{MEDIANS:g} medians and {time_us(number(backend, 'spike_us'))}"
    spikes = Panel(f"Spikes (over {over})", lambda cell: cell.spikes, _say_spikes)
    return BANDWIDTH, LATENCY, spikes


def cells(observed: Observed, found: Sequence[Accused] = ()) -> tuple[Cell, ...]:
    """Compare every pair that was tried with those that share no node with it.

    `found`: who is blamed. Others have a colour only for what healthy pairs do not scatter by.
    """
    by_turn: dict[Turn, list[Digest]] = {}
    for digest in observed.digests:
        by_turn.setdefault((digest.a, digest.b, digest.rail, digest.round), []).append(digest)
    many = len(observed.nodes) > MANY
    large = {turn: max(_ladder(own), key=lambda d: d.size_bytes) for turn, own in by_turn.items()}
    small = {turn: min(_ladder(own), key=lambda d: d.size_bytes) for turn, own in by_turn.items()}
    seen, blamed = shown(observed), blamed_turns(found, observed)
    wire = _times_slower(seen.wire, blamed, many=many)
    slow = _times_slower(seen.latency, blamed, many=many)
    usual = median([digest.size_bytes for digest in large.values()] or [0])
    spikes = against_others(seen.events, seen.scatter, blamed)
    late = against_others(seen.events, seen.scatter, blamed, late=True)
    cells = []
    for tried in observed.tried:
        turn = (tried.a, tried.b, tried.rail, tried.round)
        cells.append(
            Cell(
                a=tried.a,
                b=tried.b,
                rail=tried.rail,
                round=tried.round,
                state=tried.state,
                error=tried.error,
                bandwidth=_speed(large.get(turn), wire.get(turn), usual),
                latency=_time(small.get(turn), slow.get(turn)),
                spikes=spikes.get(turn),
                late=late.get(turn),
            )
        )
    return tuple(cells)


def _ladder(own: Sequence[Digest]) -> Sequence[Digest]:
    return [digest for digest in own if digest.phase == "ladder"] or own


class _Times(Struct, frozen=True):
    """How many times as long as its peers a pair takes, and what of that is worth a colour."""

    whole: float
    shown: float


def _times_slower(
    slower: Slower, blamed: Collection[Turn], *, many: bool
) -> dict[Turn, _Times | None]:
    """By turn; None: it has no peers."""
    peers = _peers(list(slower.logs.items()), many=many)
    found: dict[Turn, _Times | None] = {}
    for turn, log in slower.logs.items():
        typical = peers(turn)
        more = None if typical is None else log - typical
        if more is None:
            found[turn] = None
            continue
        scattered = more <= slower.hot and turn not in blamed
        found[turn] = _Times(math.exp(more), math.exp(min(more, 0.0) if scattered else more))
    return found


def _peers(own: Sequence[tuple[Turn, float]], *, many: bool) -> Callable[[Turn], float | None]:
    """Give the median of the pairs that touch neither node, else of its own other rails."""
    if many:
        typical = median([value for _, value in own]) if own else None
        return lambda _turn: typical
    others = LeaveOut([(value, turn[:2]) for turn, value in own])
    apart = {pair: others.median(pair) for pair in dict.fromkeys(turn[:2] for turn, _ in own)}

    def of(turn: Turn) -> float | None:
        found = apart[turn[:2]]
        if found is not None:
            return found
        rails = [value for other, value in own if other[:2] == turn[:2] and other[2] != turn[2]]
        return median(rails) if rails else None

    return of


def _speed(digest: Digest | None, times: _Times | None, usual: float) -> Against | None:
    """A pair whose time was up before the size that is `usual` is worse than any ratio says."""
    if digest is None:
        return None
    speed = busbw_gbs(digest.size_bytes, digest.best_us / 1e6)
    peers = None if times is None else speed * times.whole
    ratio = None if times is None else times.shown
    return Against(
        speed, peers, CUT_SHORT if digest.size_bytes < usual else ratio, digest.size_bytes
    )


def _time(digest: Digest | None, times: _Times | None) -> Against | None:
    if digest is None:
        return None
    peers_us = None if times is None else digest.p50_us / times.whole
    ratio = None if times is None else times.shown
    return Against(digest.p50_us, peers_us, ratio, digest.size_bytes)
