"""Doubts for which there was no time: said, and nobody is condemned for one slow reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from preflight.fabric.blame import Blame
    from preflight.fabric.compare import Seen
    from preflight.fabric.samples import Sweep

MORE_TIME = (
    "run again with time for a second look (--preflight-budget=SECONDS); until then keep them in "
    "different jobs"
)
_MOST = 8


def unsettled_words(sweep: Sweep) -> str:
    """Which pairs should have been measured again and were not; nothing where all were."""
    names = [f"{a}-{b}" for a, b in sweep.unsettled]
    if not names:
        return ""
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    told = ", ".join(names[:_MOST]) + more
    return f"not measured again for lack of time: {told}; give --preflight-budget=SECONDS"


def doubts(blames: Iterable[Blame], seen: Sequence[Seen], sweep: Sweep) -> dict[str, str]:
    """By pair: why a path that was slow in its only round cannot be judged."""
    slow = [one for one in blames if one.kind == "path" and not one.events]
    readings: dict[str, list[Seen]] = {name: [] for one in slow for name in one.pairs}
    for each in seen:
        if each.name in readings and each.state != "not_run":
            readings[each.name].append(each)
    waiting = {f"{a}-{b}" for a, b in sweep.unsettled}
    found: dict[str, str] = {}
    for one in slow:
        own = [each for name in one.pairs for each in readings[name]]
        own = [each for each in own if one.rail in (None, each.rail)]
        sizes = [size for each in own for size in each.summary.sizes[-1:]]
        if sizes and _only_slow(own):
            why = "no time to look again" if waiting.issuperset(one.pairs) else "not measured again"
            often = f"slow once in {sizes[0].iterations} operations"
            found |= dict.fromkeys(one.pairs, f"{often}, {why}: {one.sentence}")
    return found


def certain(blames: Iterable[Blame], doubted: Collection[str]) -> list[Blame]:
    """Those that are no mere doubt about a path."""
    out = frozenset(doubted)
    return [one for one in blames if one.kind != "path" or out.isdisjoint(one.pairs)]


def _only_slow(readings: Sequence[Seen]) -> bool:
    """Whether nothing else is wrong with a path, and all that is known of it is of one round."""
    once = len({each.round for each in readings}) == 1
    return once and all(each.state == "measured" for each in readings)
