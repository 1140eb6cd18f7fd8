"""A sweep over hundreds of nodes fits into the controller: equal times are kept once.

Times come rounded to hundredths of a microsecond, so that most of them have come before. A number
takes 24 bytes and each place that holds it 8 (CPython). Finding the one that is there costs more
than decoding did, hence only while nobody says anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from preflight.fabric.samples import End, Timing

MOST = 1 << 15
"""Different times that are looked out for: rare ones would fill a table and seldom be met again."""


class Thrift:
    """The times of one sweep so far."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: dict[float, float] = {}

    def end(self, end: End) -> End:
        """An equal account, made of times that were there before where there are such."""
        return replace(end, timings=tuple(map(self._timing, end.timings)))

    def _timing(self, timing: Timing) -> Timing:
        return replace(
            timing, times_us=self._shared(timing.times_us), gaps_us=self._shared(timing.gaps_us)
        )

    def _shared(self, values: tuple[float, ...]) -> tuple[float, ...]:
        known = self._kept.setdefault if len(self._kept) < self._most else self._kept.get
        return tuple(map(known, values, values))
