"""Whether there is time left to look again: by what rounds really took, not by their deadlines.

Deadlines are made for hung nodes; a round of healthy ones needs a small part of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preflight.fabric.plan import Budget

_TIMES = 2
_MARGIN_S = 2.0


class Pace:
    """How long the rounds of one sweep took so far, seen from the controller."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last: tuple[int, float] | None = None
        """The latest round of which anybody spoke, and when that was first."""

    def saw(self, number: int, now_s: float) -> None:
        """Count an account of that round, heard at `now_s` of a steady clock."""
        if self._last is not None and number <= self._last[0]:
            return
        if self._last is not None:
            rounds = number - self._last[0]
            self.longest_s = max(self.longest_s, (now_s - self._last[1]) / rounds)
        self._last = number, now_s

    def room_s(self, limits: Budget, sizes: int) -> float:
        """How much time must be left for one more round of so many sizes to be worth a try.

        One that does not end in time costs nothing but that time: it does not count.
        """
        measuring_s = limits.box_s * sizes + limits.soak_s
        likely_s = max(measuring_s, _TIMES * self.longest_s) + _MARGIN_S
        return min(likely_s, _TIMES * limits.barrier_s)
