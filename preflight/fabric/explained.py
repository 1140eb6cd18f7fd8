"""A node that is known to be slow is one fault: those of its pairs that show it most are no paths.

Around an absolute limit some pairs of a slow node fall below it and some do not; those judged by
themselves would blame the paths to healthy partners.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from preflight.fabric.decoding.accounts import EVENTS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from preflight.fabric.compare import Seen
    from preflight.fabric.culprit import Component, Found
    from preflight.fabric.decode import Culprit

_OF_A_NODE = ("node", "endpoint")
_SHIFTS = ("slow", "latency")
_BY_LOSS = ("hung", "error")
_WORSE = 2.0
"""So many times slower than what else goes through the node, a path has a fault of its own."""


def explained(culprit: Culprit, seen: Sequence[Seen], found: Sequence[Found]) -> bool:
    """Whether nodes that are named anyway account for it; a pair kept apart takes more."""
    if culprit.kind == "node":
        return False
    own = [one for one in seen if one.bad and (one.a, one.b) in culprit.pairs]
    own = [one for one in own if one.state != "corrupt"]
    return all(any(_accounts(each, one, seen) for each in found) for one in own)


def ends_words(a: str, b: str, rails: Collection[int | None], found: Sequence[Found]) -> str:
    """Say which ends of a bad path are fine with others, and which have another fault besides."""
    named = [part for part in _parts(found) if {a, b}.intersection(part.nodes)]
    there = [part for part in named if part.rail is None or not {None, part.rail}.isdisjoint(rails)]
    ill = [name for name in (a, b) if any(name in part.nodes for part in there)]
    if len(ill) == len((a, b)):
        return f"{a} and {b} have faults of their own besides"
    if ill:
        return f"{b if ill == [a] else a} is fine with others, {ill[0]} has another fault besides"
    on = ", ".join(str(rail) for rail in sorted(rail for rail in rails if rail is not None))
    where = f"on rail {on} " if named and on else ""
    return f"{where}{a} and {b} are both fine with others"


def _parts(found: Sequence[Found]) -> Iterator[Component]:
    """Nodes and rails of them that are named for sure."""
    parts = (one.named for one in found)
    return (part for part in parts if part is not None and part.kind in _OF_A_NODE)


def _accounts(found: Found, row: Seen, seen: Sequence[Seen]) -> bool:
    part = found.named
    if part is None or part.kind not in _OF_A_NODE or part.nodes[0] not in (row.a, row.b):
        return False
    if found.symptom in EVENTS:
        return bool(row.slow) or row.state in _BY_LOSS
    if found.symptom not in _SHIFTS or part.rail not in (None, row.rail):
        return False
    return bool(row.slow) and (row.a, row.b) in found.pairs and not _worse(row, part, seen)


def _worse(row: Seen, part: Component, seen: Sequence[Seen]) -> bool:
    """Whether it is slower by far than the other pairs of the node."""
    if row.slow == "reach":
        return False
    others = [
        _times_slower(one, row.slow)
        for one in seen
        if part.nodes[0] in (one.a, one.b)
        and part.rail in (None, one.rail)
        and (one.a, one.b) != (row.a, row.b)
    ]
    known = [times for times in others if times is not None]
    times = _times_slower(row, row.slow)
    return times is None or not known or times > _WORSE * median(known)


def _times_slower(one: Seen, how: str) -> float | None:
    """How many times slower than its peers; None where that cannot be said."""
    if how == "latency":
        both = one.latency_us, one.peers_latency_us
    else:
        both = one.bound.peers_gbs, one.busbw_gbs
    more, less = both
    return more / less if more and less else None
