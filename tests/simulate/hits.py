"""Which operations of a pair last longer than its noise says, and at which end: faults and bursts.

Everything is drawn from the seed and the place it concerns, so that a pair is the same whatever
else is planted, and rails of one host that must feel one stall draw it from the same place.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, NamedTuple

from tests.simulate.stream import Hit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from random import Random

    from tests.simulate.faults import Fault
    from tests.simulate.noise import Rare

Hits = dict[int, Hit]
"""Operation → what is added to it."""

_ONE_SIDED = 0.8
"""Of lost packets: how many delay the receiver alone. Measured at 256 KiB: most."""
_BOTH_BELOW_BYTES = 64 << 10
_ONE_SIDED_SMALL = 0.5
_RAILS_FEEL = 0.8
"""How likely a rail of a stalled host is in an operation just then."""
_SPREAD_LOG_SD = 0.25
"""Of what one planted fault adds to the operations it hits."""
_LATE_SHARE = 0.5
"""Of a host's healthy stalls: how many fall between two operations, not into one."""


class Burst(NamedTuple):
    """A moment at which several endpoints are delayed: seconds from the start of its round."""

    at_s: float
    lasts_us: float
    late: bool
    """Between two operations: the host's gap grows and its partners wait."""
    by: str
    """The host, or the leaf."""


def planted(fault: Fault, random: Random, operations: int, size_bytes: int, *, at_a: bool) -> Hits:
    """Operations of one rung that a fault delays; `at_a`: its part lies at the pair's first end."""
    hits: Hits = {}
    for number in _places(random, operations, fault.per_operation):
        extra = fault.lasts_us * random.lognormvariate(0, _SPREAD_LOG_SD)
        if fault.kind == "late":
            add(hits, number, late(extra, of_a=at_a))
        elif fault.kind == "loss" and random.random() < _one_sided(size_bytes):
            # The receiver is late at this operation; whoever waits for it is late at the next.
            receives_a = at_a == fault.incoming
            one, other = Hit(first=extra), Hit(second=extra)
            add(hits, number, one if receives_a else other)
            if number + 1 < operations:
                add(hits, number + 1, other if receives_a else one)
        else:
            add(hits, number, Hit(extra, extra))
    return hits


def late(extra_us: float, *, of_a: bool) -> Hit:
    """One host begins late: its own gap grows, the other end's operation lasts as much longer."""
    return Hit(second=extra_us, first_gap=extra_us) if of_a else Hit(extra_us, second_gap=extra_us)


def add(hits: Hits, number: int, hit: Hit) -> None:
    """Two delays of one operation come after each other."""
    known = hits.get(number)
    hits[number] = hit if known is None else known + hit


def lasting(random: Random, rare: Rare) -> float:
    """How long one rare event of a healthy part lasts, us."""
    return rare.median_us * random.lognormvariate(0, rare.log_sd)


def bursts(random: Random, rare: Rare, by: str, round_s: float) -> tuple[Burst, ...]:
    """The bursts of one host or leaf in one round."""
    found: list[Burst] = []
    at_s = _wait(random, rare.rate)
    while at_s < round_s:
        stays_out = random.random() < _LATE_SHARE
        found.append(Burst(at_s, lasting(random, rare), stays_out, by))
        at_s += _wait(random, rare.rate)
    return tuple(found)


def felt(burst: Burst, a: str, rail_random: Random, *, by_leaf: bool) -> Hit | None:
    """What one rail of a pair feels of a burst; None where it was between operations."""
    if rail_random.random() >= _RAILS_FEEL:
        return None
    if burst.late and not by_leaf:
        return late(burst.lasts_us, of_a=burst.by == a)
    return Hit(burst.lasts_us, burst.lasts_us)


def merged(all_hits: Sequence[Hits]) -> Hits:
    """Several causes in one rung."""
    result: Hits = {}
    for hits in all_hits:
        for number, hit in hits.items():
            add(result, number, hit)
    return result


def _wait(random: Random, rate: float) -> float:
    return random.expovariate(rate) if rate else float("inf")


def _places(random: Random, operations: int, share: float) -> Iterator[int]:
    """Each operation with the same probability, without asking each."""
    if share <= 0:
        return
    at = -1
    while True:
        at += 1 + (int(log(1 - random.random()) / log(1 - share)) if share < 1 else 0)
        if at >= operations:
            return
        yield at


def _one_sided(size_bytes: int) -> float:
    return _ONE_SIDED if size_bytes >= _BOTH_BELOW_BYTES else _ONE_SIDED_SMALL
