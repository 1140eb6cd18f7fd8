"""A talk that keeps its payload alive and notices when the line has died without a sound.

TCP tells nobody that a cable was cut or that packets are dropped, so both ends count silence: the
payload leaves when no message came for the length of its lease, and we give up a little earlier on
a payload that promised to be heard and is not.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from preflight.transport.protocol import ReachError

if TYPE_CHECKING:
    from collections.abc import Mapping

LEASE_S = 15.0
"""The payload ends by itself after so long without a message; a request names it as `lease_s`."""

RENEW_S = 3.0
"""How often we say that we are there: four renewals may be lost or late."""

LOST_S = 12.0
"""Silence after which a line counts as lost. Less than the lease: a node that is cut off must be
known as the culprit before others leave on its account."""

_HELD_UP_S = 3.0
"""Between two looks; callers come by every second at least."""


class Talk(Protocol):
    """A conversation with a running payload. One thread speaks and listens; any may `close`."""

    def hear(self, within_s: float) -> bytes | None:
        """Return its next message as JSON; None if none comes in time, and it works on.

        WireError or ReachError once no more will come.
        """

    def send(self, message: Mapping[str, object]) -> None:
        """Send one JSON object."""

    def close(self) -> None:
        """End the payload, whatever it is doing. Never raises."""


class Leased:
    """Speaks for us while we listen or wait; for one thread, but for `close`."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._renewals = 0
        self._spoke = self._heard = self._looked = time.monotonic()
        self._watched = self._spared = False

    def watch(self) -> None:
        """From now on the payload says in time that it is alive; silence means a lost line."""
        self._watched = True
        self._heard = time.monotonic()

    def hear(self, within_s: float) -> bytes | None:
        """As the talk's, renewing the lease; ReachError("answer") when the line is lost.

        If we did not listen meanwhile (we were stopped), it gets half the time more, once.
        """
        self.renew()
        document = self._talk.hear(within_s)
        now = time.monotonic()
        held_up_s, self._looked = now - self._looked, now
        if document is not None:
            self._heard, self._spared = now, False
        elif self._watched and now - self._heard > LOST_S:
            if held_up_s > _HELD_UP_S and not self._spared:
                self._heard, self._spared = now - LOST_S / 2, True
                return None
            raise ReachError(
                "answer",
                f"the connection to it was lost: it said nothing for {LOST_S:g} s",
                "look whether the node is up and at the network between it and this machine",
            )
        return document

    def send(self, message: Mapping[str, object]) -> None:
        """Send one JSON object, which renews the lease as well."""
        self._spoke = time.monotonic()
        self._talk.send(message)

    def renew(self) -> None:
        """Say that we are there, if it is time; callers that do something else come by often."""
        if time.monotonic() - self._spoke >= RENEW_S:
            self._renewals += 1
            self.send({"renew": self._renewals})

    def close(self) -> None:
        """End the payload."""
        self._talk.close()
