"""A node works only while its controller says that it is there: a line can die without a sound.

A cut cable or a firewall that drops ends no connection, so silence itself must end us. The clock is
CLOCK_MONOTONIC of this node: nobody's idea of the date matters.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Message = dict[str, Any]

BEATS = 5
"""So often per lease an agent says that it is alive."""

_LOOK_S = 0.5
"""How often a lapse is looked for while nothing comes."""

_HELD_UP_S = 3.0
"""Between two looks, half a second apart; more than any scheduler's delay."""

CLOSED, LINE = "closed", "line"


class Lease:
    """The sources whose renewals this process needs, all of them, and when each came last."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        """None: it never lapses."""
        self._renewed = {LINE: time.monotonic()}
        self._looked = time.monotonic()
        self._spared = False

    def renew(self, source: str) -> None:
        """Note that a source is there; from its first time on, it must stay."""
        self._renewed[source] = time.monotonic()
        self._spared = False

    def lapsed(self) -> str:
        """Name a source that has been silent for too long, or nothing; to be asked often.

        Who was held up itself (stopped, or by a loader that keeps the interpreter) has heard
        nothing of what came meanwhile: it gets half a lease more, once, to take it in.
        """
        if self.seconds is None:
            return ""
        now = time.monotonic()
        held_up_s, self._looked = now - self._looked, now
        renewed = dict(self._renewed)  # another thread may add to it
        silent = [name for name, at in renewed.items() if now - at > self.seconds]
        if silent and held_up_s > _HELD_UP_S and not self._spared:
            self._spared = True
            self._renewed.update(dict.fromkeys(silent, now - self.seconds / 2))
            return ""
        return silent[0] if silent else ""


def attend(
    lines: Callable[[float], Message | None], lease: Lease, take: Callable[[Message], None]
) -> str:
    """Give the controller's messages to `take` while the lease holds; return what ended it.

    Any message renews the line. "closed" if the controller hung up, else the source that lapsed.
    """
    while True:
        try:
            message = lines(_LOOK_S)
        except TimeoutError:
            pass
        else:
            if message is None:
                return CLOSED
            lease.renew(LINE)
            take(message)
        ended = lease.lapsed()
        if ended:
            return ended
