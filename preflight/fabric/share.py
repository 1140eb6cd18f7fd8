"""How much of a sweep's time went into measuring: what is left is waiting, connecting, checking."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.fabric.samples import End, Sweep, Timing

_US = 1e6


class _Turn(Struct, frozen=True):
    """One end's part in one pair: seconds, by the clock of its node."""

    begins_s: float
    ends_s: float
    inside_s: float
    """Of it, in operations that were timed."""


def measured_share(sweep: Sweep) -> float | None:
    """The part of their time, 0 to 1, that rails spent in timed operations; None: nothing was.

    A rail's time runs from the start of its first scheduled pair, connecting included, to the end
    of its last one's last operation, by its node's own clock: what start-up took is not in it, and
    rounds in which it had no pair are. A node whose clock was set meanwhile does not count.
    """
    seats: dict[tuple[str, int], list[_Turn]] = {}
    for node, rail, end in _scheduled(sweep):
        seats.setdefault((node, rail), []).append(_turn(end))
    inside_s = total_s = 0.0
    most_s = sweep.seconds or math.inf
    for turns in seats.values():
        spent_s = sum(turn.inside_s for turn in turns)
        window_s = max(turn.ends_s for turn in turns) - min(turn.begins_s for turn in turns)
        if spent_s <= window_s <= most_s:
            inside_s += spent_s
            total_s += window_s
    return inside_s / total_s if total_s > 0 else None


def _scheduled(sweep: Sweep) -> Iterator[tuple[str, int, End]]:
    for pair in sweep.pairs:
        if sweep.retested and pair.round >= sweep.retested:
            continue
        for end in (pair.first, pair.second):
            if end is not None and end.timings:
                yield end.node, pair.rail, end


def _turn(end: End) -> _Turn:
    return _Turn(
        begins_s=end.started_s - end.setup_ms / 1e3,
        ends_s=end.started_s + max(map(_ends_s, end.timings)),
        inside_s=sum(sum(timing.times_us) for timing in end.timings) / _US,
    )


def _ends_s(timing: Timing) -> float:
    """Seconds after the end's `started_s`: times, gaps, and the checks that gaps leave out."""
    checks_us = timing.check_us * len(timing.times_us)
    return timing.began_s + (sum(timing.times_us) + sum(timing.gaps_us) + checks_us) / _US
