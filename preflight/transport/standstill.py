"""Notices that this very process stood still: what went wrong meanwhile is no node's fault.

Ctrl-Z, a debugger, a machine that swaps or a laptop that slept: nodes hear nothing from us and
leave as they should, and our own deadlines pass while nobody watches them.
"""

from __future__ import annotations

import threading
import time

LEAST_S = 3.0
"""Shorter holes are any busy machine's, and cost nobody anything."""

_LOOK_S = 0.5
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Also counts while the machine sleeps, where there is such a clock (Linux)."""


def _now() -> float:
    return time.clock_gettime(_CLOCK)


class Standstill:
    """Looks at the clock twice a second, from `watch` to `close`."""

    def __init__(self) -> None:
        self._looked = _now()
        self._ended = 0.0
        self._longest_s = 0.0
        self._unforgiven_s = 0.0
        self._lock = threading.Lock()
        self._over = threading.Event()

    def watch(self) -> None:
        """Look from now on, in a thread."""
        self._looked = _now()
        threading.Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()

    def recent_s(self, within_s: float) -> float:
        """How long the last hole was, if it ended less than `within_s` ago; else 0."""
        self.look()
        return self._longest_s if _now() - self._ended < within_s else 0.0

    def forgive_s(self) -> float:
        """For how long we stood still since this was last asked."""
        self.look()
        with self._lock:
            seconds, self._unforgiven_s = self._unforgiven_s, 0.0
        return seconds

    def look(self) -> None:
        """Compare the clock with the last look; the first thread that runs again may ask."""
        with self._lock:
            now = _now()
            hole_s, self._looked = now - self._looked, now
            if not self._over.is_set() and hole_s > LEAST_S:
                self._ended, self._longest_s = now, hole_s
                self._unforgiven_s += hole_s

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.look()
