"""Doubts for which there was no time: said, and nobody is condemned for one slow reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from preflight.fabric.blame import Blame
    from preflight.fabric.compare import Seen
    from preflight.fabric.samples import Sweep

MORE_TIME = "give more time, so that it is measured again: --preflight-budget SECONDS"
_MOST = 8


def unsettled_words(sweep: Sweep) -> str:
    """Which pairs should have been measured again and were not; nothing where all were."""
    names = [f"{a}-{b}" for a, b in sweep.unsettled]
    if not names:
        return ""
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    told = ", ".join(names[:_MOST]) + more
    return f"not measured again for lack of time: {told}; give --preflight-budget SECONDS"


def doubts(blames: Iterable[Blame], seen: Sequence[Seen], sweep: Sweep) -> dict[str, str]:
    """By pair: why a path that was slow in a single reading cannot be judged."""
    waiting = {f"{a}-{b}" for a, b in sweep.unsettled}
    found = {}
    for one in blames:
        if one.kind != "path" or not waiting.issuperset(one.pairs):
            continue
        bad = [each for each in seen if each.bad and each.name in one.pairs]
        if len(bad) == 1 and bad[0].slow:
            operations = bad[0].summary.sizes[-1].iterations
            found[bad[0].name] = (
                f"slow once in {operations} operations, no time to look again: {one.sentence}"
            )
    return found
