"""How often a pair spikes, against the others: rare events shown so that chance is no colour."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.report.picture.against import Against, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from preflight.fabric.digest import Digest

_ONE_BURST_S = 0.05
"""What stands out within so long is one event: a stall of the wire delays all that is on it."""

_PRIOR = 3.0
"""Bursts added to those seen and to those expected, so that one odd burst is no colour."""


class Count(Struct, frozen=True):
    """What one pair showed on one rail in one round, over all sizes."""

    bursts: int
    late: int
    operations: int
    longest_us: float


def counted(own: Iterable[Digest]) -> Count:
    """Count what took long at both ends, and what did at one end: that began late at the other."""
    operations, longest = 0, 0.0
    long_s: list[tuple[float, float]] = []
    late_s: list[tuple[float, float]] = []
    for digest in own:
        operations += digest.operations
        longest = max(longest, digest.most_us)
        for one in digest.standouts:
            kept = long_s if one.network_us > digest.cut_us else late_s
            kept.append((one.at_s, one.at_s + max(one.first_us, one.second_us) / 1e6))
    return Count(_bursts(long_s), _bursts(late_s), operations, longest)


def _bursts(spans: list[tuple[float, float]]) -> int:
    """How many there are, when those that follow within 50 ms are one."""
    number, until_s = 0, -math.inf
    for began_s, ended_s in sorted(spans):
        number += began_s - until_s > _ONE_BURST_S
        until_s = max(until_s, ended_s)
    return number


def against_others(counts: Mapping[Turn, Count], *, late: bool = False) -> dict[Turn, Against]:
    """Each count of bursts, or of late starts, against the rate of the others.

    Those with other nodes, or all if they have more: in a small fleet hardly any pair holds
    neither node, and one quiet pair makes no yardstick.
    """
    hits: Counter[frozenset[str]] = Counter()
    tries: Counter[frozenset[str]] = Counter()
    for (a, b, _, _), one in counts.items():
        for whose in ((), (a,), (b,), (a, b)):
            hits[frozenset(whose)] += one.late if late else one.bursts
            tries[frozenset(whose)] += one.operations
    return {
        turn: _against(turn, one, one.late if late else one.bursts, hits, tries)
        for turn, one in counts.items()
    }


def _against(
    turn: Turn, one: Count, seen: int, hits: Counter[frozenset[str]], tries: Counter[frozenset[str]]
) -> Against:
    everyone: frozenset[str] = frozenset()
    apart = (_apart(hits, turn), _apart(tries, turn))
    others = (hits[everyone] - seen, tries[everyone] - one.operations)
    rates = [some / of for some, of in (apart, others) if of > 0]
    if not rates:
        return Against(seen, None, None, of=one.operations, longest_us=one.longest_us)
    expected = one.operations * max(rates)
    ratio = (seen + _PRIOR) / (expected + _PRIOR)
    return Against(seen, expected, ratio, of=one.operations, longest_us=one.longest_us)


def _apart(sums: Counter[frozenset[str]], turn: Turn) -> int:
    """Sum over the pairs that hold neither of its nodes."""
    a, b = turn[:2]
    all_of = sums[frozenset()] - sums[frozenset((a,))] - sums[frozenset((b,))]
    return all_of + sums[frozenset((a, b))]
