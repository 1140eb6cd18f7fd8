"""The greeting of a relay: whoever calls our port must know the run's secret, and so must we."""

from __future__ import annotations

import hmac
import os
from typing import TYPE_CHECKING, Final

from preflight.transport.relay.frames import Opener, RefusedError, Sealer

if TYPE_CHECKING:
    from collections.abc import Container

GREETING: Final = b"preflight relay 1\n"
RANDOM = 32
PROOF = 32


class Hello:
    """One caller's greeting: `opening` is sent to it, `feed` takes what it says."""

    def __init__(self, secret: bytes, expected: Container[str]) -> None:
        self._secret = secret
        self._expected = expected
        self._ours = os.urandom(RANDOM)
        self._heard = bytearray()

    @property
    def opening(self) -> bytes:
        """What the caller is greeted with: fresh for each, so that no old answer fits."""
        return GREETING + self._ours

    def feed(self, data: bytes) -> Proven | None:
        """Take some bytes; the proven caller once it has said all, RefusedError if it lies."""
        self._heard += data
        if not self._heard or len(self._heard) < 1 + self._heard[0] + RANDOM + PROOF:
            return None
        length = self._heard[0]
        word = bytes(self._heard[1 : 1 + length])
        theirs = bytes(self._heard[1 + length : 1 + length + RANDOM])
        proof = bytes(self._heard[1 + length + RANDOM :])
        expected = self._mac(b"relay\0" + word + self._ours + theirs)
        if not hmac.compare_digest(proof, expected):
            raise RefusedError("a caller does not know this run's secret")
        name = word.decode("utf-8", "replace")
        if name not in self._expected:
            raise RefusedError("a caller is not one of the nodes that are expected")
        return Proven(
            name,
            self._mac(b"controller\0" + word + theirs + self._ours),
            Sealer(self._mac(b"from controller\0" + self._ours + theirs)),
            Opener(self._mac(b"from relay\0" + self._ours + theirs)),
        )

    def _mac(self, message: bytes) -> bytes:
        return hmac.digest(self._secret, message, "sha256")


class Proven:
    """A caller that is the relay of a node of this run; `answer` proves us to it."""

    def __init__(self, name: str, answer: bytes, sealer: Sealer, opener: Opener) -> None:
        self.name = name
        self.answer = answer
        self.sealer = sealer
        self.opener = opener
