"""What goes over the relay's one connection: frames, each proven to be the next one of its sender.

The controller's half is `preflight.transport.relay`; docs/wire.md is what both follow.
"""

from __future__ import annotations

import hmac
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Tuple

    Frame = Tuple[int, int, bytes]
    """Kind, channel, body."""

START, STDIN, EOF, KILL, MORE_OUT = 1, 2, 3, 4, 5
OUT, ERR, OUT_END, EXIT, MORE_IN, DEAF = 16, 17, 18, 19, 20, 21
"""What the controller says, and what the node says. DEAF: the command reads no more input."""

HEAD = struct.Struct("!BII")
NUMBER = struct.Struct("!i")
TAG = 16
LARGEST = 256 << 10
"""Bytes of a body; a longer frame is refused before it is read."""


class Refused(Exception):  # noqa: N818 (the payload's endings are named for what happened)
    """The other side is not who it claims to be, or not in its right mind."""


class Sealer:
    """Turns what we say into frames."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def seal(self, kind: int, channel: int, body: bytes = b"") -> bytes:
        """Return the bytes of our next frame."""
        plain = HEAD.pack(kind, channel, len(body)) + body
        tag = _tag(self._key, self._count, plain)
        self._count += 1
        return plain + tag


class Opener:
    """Takes bytes as they arrive, and gives the frames in them."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield every frame that is whole by now; Refused if it is forged, replayed or too long."""
        self._buffer += data
        while len(self._buffer) >= HEAD.size:
            kind, channel, length = HEAD.unpack_from(self._buffer)
            if length > LARGEST:
                raise Refused("a frame is too long")
            whole = HEAD.size + length
            if len(self._buffer) < whole + TAG:
                return
            plain = bytes(self._buffer[:whole])
            tag = bytes(self._buffer[whole : whole + TAG])
            del self._buffer[: whole + TAG]
            if not hmac.compare_digest(tag, _tag(self._key, self._count, plain)):
                raise Refused("a frame is not from whom it should be")
            self._count += 1
            yield kind, channel, plain[HEAD.size :]


def _tag(key: bytes, count: int, plain: bytes) -> bytes:
    return hmac.digest(key, count.to_bytes(8, "big") + plain, "sha256")[:TAG]
