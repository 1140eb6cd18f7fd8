"""One slow reading is a bad moment or a bad path: two longer ones with the same nodes tell which.

A path that is slow stays slow; a machine that was busy for half a second does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.fabric.compare import compare
from preflight.fabric.culprit import Component
from preflight.fabric.decode import decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.compare import Seen
    from preflight.fabric.samples import PairSamples, Sweep

    Where = tuple[str, str, int]


def slow_parts(sweep: Sweep) -> list[Component]:
    """Paths that are slower than their peers while both ends are fine with others.

    And all nodes of a set in which a slow one lies: with others they can be told apart.
    """
    seen = compare(sweep, ())
    slow = {(one.a, one.b) for one in seen if one.slow}
    parts: list[Component] = []
    for culprit in decode(seen, sweep.troubles):
        if not set(culprit.pairs) <= slow:
            continue
        if culprit.kind == "path":
            parts.append(Component("path", "-".join(culprit.among), culprit.among))
        elif culprit.kind == "unresolved":
            parts += [Component("node", name, (name,)) for name in culprit.among]
    return parts


def borne_out(seen: Sequence[Seen], sweep: Sweep) -> tuple[Seen, ...]:
    """Take slowness or a hang back where every retest of that pair was good and no counter moved.

    A way that was bad stays bad; a busy moment and a lost operation do not.
    """
    if not sweep.retested:
        return tuple(seen)
    again: dict[Where, list[Seen]] = {}
    for one in seen:
        if one.round >= sweep.retested:
            again.setdefault(_where(one), []).append(one)
    moved = {_where(pair) for pair in sweep.pairs if _confesses(pair)}
    acquitted = {
        where
        for where, readings in again.items()
        if where not in moved and all(each.good for each in readings)
    }
    return tuple(_taken_back(one) if _where(one) in acquitted else one for one in seen)


def _taken_back(one: Seen) -> Seen:
    if one.state == "hung":
        return replace(one, hung_once=True)
    return replace(one, slow="", once=one.slow) if one.slow else one


def _where(one: Seen | PairSamples) -> Where:
    return one.a, one.b, one.rail


def _confesses(pair: PairSamples) -> bool:
    ends = (end for end in (pair.first, pair.second) if end is not None)
    return any(each.proves for end in ends for each in end.moved)
