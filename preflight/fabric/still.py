"""When one end stood still: what then waited for it waited for no wire.

An operation is long at both ends when one of them is frozen inside of it; if the partner was
through with it by then, the partner's next one is. A supervisor that waited for a CPU explains
nothing: the measuring process may have had another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight.fabric.samples import End, Timing


def starts_s(started_s: float, timing: Timing) -> Iterator[float]:
    """When each operation began, by the clock of `started_s`."""
    resumed = {one.operation: started_s + one.at_s for one in timing.resumed}
    clock_s = started_s + timing.began_s
    for number, (time_us, gap_us) in enumerate(zip(timing.times_us, timing.gaps_us, strict=False)):
        clock_s = resumed.get(number, clock_s) + gap_us / 1e6
        yield clock_s
        clock_s += (time_us + timing.check_us) / 1e6


class Still:
    """How much of each operation of one end, and of the one before it, that end stood still."""

    def __init__(self, end: End | None, timing: Timing | None) -> None:
        self._times: list[tuple[float, float]] = []
        if end is None or timing is None or not end.stalls:
            return
        self._times = _merged(
            [(one.at_s, one.at_s + one.ms / 1e3) for one in end.stalls if one.what != "starved"]
        )
        self._timing = timing
        self._starts_s = list(starts_s(end.started_s, timing))

    def us(self, number: int) -> float:
        """Around that operation."""
        if not self._times:
            return 0.0
        since_s = self._starts_s[max(0, number - 1)]
        until_s = self._starts_s[number] + self._timing.times_us[number] / 1e6
        covered = sum(
            max(0.0, min(until_s, ended_s) - max(since_s, began_s))
            for began_s, ended_s in self._times
        )
        return round(covered * 1e6, 1)


def _merged(times: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same without overlaps: process and host may stand still at once."""
    merged: list[tuple[float, float]] = []
    for began_s, ended_s in sorted(times):
        if merged and began_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ended_s))
        else:
            merged.append((began_s, ended_s))
    return merged
