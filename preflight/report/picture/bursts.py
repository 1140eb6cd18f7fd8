"""How often a pair spikes, against the others: rare events shown so that chance is no colour."""

from __future__ import annotations

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
    operations: int
    longest_us: float


def counted(own: Iterable[Digest]) -> Count:
    """Count what took long at both ends: what is long at one end only began late at the other."""
    bursts, operations, longest, last_s = 0, 0, 0.0, -1.0
    for digest in own:
        operations += digest.operations
        longest = max(longest, digest.most_us)
        for one in digest.standouts:
            if one.network_us > digest.cut_us:
                bursts += abs(one.at_s - last_s) > _ONE_BURST_S
                last_s = one.at_s + one.network_us / 1e6
    return Count(bursts, operations, longest)


def against_others(counts: Mapping[Turn, Count]) -> dict[Turn, Against]:
    """Each count against the rate of the others: of those with other nodes, or of all if higher.

    In a small fleet hardly any pair holds neither node, and one quiet pair makes no yardstick.
    """
    hits: Counter[frozenset[str]] = Counter()
    tries: Counter[frozenset[str]] = Counter()
    for (a, b, _, _), one in counts.items():
        for whose in ((), (a,), (b,), (a, b)):
            hits[frozenset(whose)] += one.bursts
            tries[frozenset(whose)] += one.operations
    return {turn: _against(turn, one, hits, tries) for turn, one in counts.items()}


def _against(
    turn: Turn, one: Count, hits: Counter[frozenset[str]], tries: Counter[frozenset[str]]
) -> Against:
    everyone: frozenset[str] = frozenset()
    apart = (_apart(hits, turn), _apart(tries, turn))
    others = (hits[everyone] - one.bursts, tries[everyone] - one.operations)
    rates = [seen / of for seen, of in (apart, others) if of > 0]
    if not rates:
        return Against(one.bursts, None, None, of=one.operations, longest_us=one.longest_us)
    expected = one.operations * max(rates)
    ratio = (one.bursts + _PRIOR) / (expected + _PRIOR)
    return Against(one.bursts, expected, ratio, of=one.operations, longest_us=one.longest_us)


def _apart(sums: Counter[frozenset[str]], turn: Turn) -> int:
    """Sum over the pairs that hold neither of its nodes."""
    a, b = turn[:2]
    all_of = sums[frozenset()] - sums[frozenset((a,))] - sums[frozenset((b,))]
    return all_of + sums[frozenset((a, b))]
