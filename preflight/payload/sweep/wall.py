"""The date of a moment by this node's clock as it stood when the sweep began there.

A clock that is set in the middle (NTP's first answer, a person) would tear one event in two. What
is timed at all is timed by the steady clock; this only says when it was.
"""

from __future__ import annotations

import time

_WALL, _STEADY = time.time(), time.monotonic()  # the agent's, which its ranks inherit by fork

_LEAST_S = 1.0
_SLEWED = 0.001
"""NTP may slow a clock down or speed it up by half of that without setting it."""


def now_s() -> float:
    """Seconds since 1970, never set."""
    return date_s(time.monotonic())


def date_s(steady: float) -> float:
    """When it was that the steady clock showed this; seconds since 1970, never set."""
    return round(_WALL + steady - _STEADY, 3)


class Steps:
    """How far the clock was set, from one look to the next."""

    def __init__(self) -> None:
        self._known = time.time() - now_s()
        self._looked = time.monotonic()

    def step_s(self) -> float:
        """Seconds by which it was set since the last look; 0.0 if it was not."""
        now, off_s = time.monotonic(), time.time() - now_s()
        passed_s, self._looked = now - self._looked, now
        step_s, self._known = off_s - self._known, off_s
        return round(step_s, 1) if abs(step_s) > _LEAST_S + _SLEWED * passed_s else 0.0
