"""Why a sweep is not finished, where no node is to blame: time, Ctrl-C, our own standing still."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from preflight.fabric.agents import Gone
from preflight.fabric.events import Lapsed, PairSeen, Trouble
from preflight.transport.leased import LEASE_S, RENEW_S

if TYPE_CHECKING:
    from preflight.fabric.collect import Collected
    from preflight.fabric.events import Event
    from preflight.transport.standstill import Standstill

TIME_UP = "the run's time was up before it was measured; give more: --preflight-budget=SECONDS"
_INTERRUPTED = "interrupted before it was measured"
_STOOD_STILL = (
    "preflight itself stood still for {0:.0f} s (stopped, or its machine slept), so the nodes left "
    "as they should: nothing is known against them; run again"
)


class CutShort:
    """Whether and why one sweep ends before all that was planned is measured."""

    def __init__(self, ends: float, own: Standstill) -> None:
        """`ends`: when the time is up, by the monotonic clock. `own`: watches this process."""
        self.ends = ends
        self.why = ""
        """Nothing while all goes as planned, or when only retests were cut."""
        self.collected: Collected | None = None
        """The accounts, once there are any to come."""
        self._own = own

    @property
    def left_s(self) -> float:
        """Seconds until the time is up."""
        return self.ends - time.monotonic()

    def time_is_up(self) -> bool:
        """Say so; from then on the sweep is unfinished, unless only retests were under way."""
        if self.left_s > 0:
            return bool(self.why)
        self._cut(TIME_UP)
        return True

    def our_fault(self, event: Event | Gone) -> bool:
        """Whether a loss is explained by our own standing still; the sweep is unfinished then.

        After a hole of about the lease all nodes leave, and their partners complain of them.
        """
        hole_s = self._own.recent_s(LEASE_S)
        bad = isinstance(event, Gone | Lapsed | Trouble) or (
            isinstance(event, PairSeen) and event.state != "measured"
        )
        if not bad or hole_s < LEASE_S - RENEW_S - 1:
            return False
        self._cut(_STOOD_STILL.format(hole_s))
        return True

    def interrupt(self) -> None:
        """Whatever is missing from here on, the operator did not want to wait for it."""
        self.why = _INTERRUPTED

    def _cut(self, why: str) -> None:
        if self.collected is not None and self.collected.retesting:
            self.collected.cut = True
        else:
            self.why = why
