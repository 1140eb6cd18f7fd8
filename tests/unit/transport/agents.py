"""An SSH agent that misbehaves, for the tests of logins."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

Way = Literal["hangs", "trickles", "is endless", "signs nothing", "sends no keys", "has a comment"]

LIST, LISTED, SIGN, REFUSED = 11, 12, 13, 5


class Agent:
    """Listens at `place`, and answers in one of the ways in which an agent should not."""

    def __init__(self, place: Path, way: Way, key: bytes) -> None:
        self._way, self._key = way, key
        self._ears = socket.socket(socket.AF_UNIX)
        self._ears.bind(str(place))
        self._ears.listen(64)
        self._links: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        for link in (self._ears, *self._links):
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                self._links.append(self._ears.accept()[0])
                threading.Thread(target=self._serve, args=self._links[-1:], daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with suppress(OSError, struct.error):
            while True:
                (length,) = struct.unpack(">I", link.recv(4))
                self._answer(link, link.recv(length)[0])

    def _answer(self, link: socket.socket, request: int) -> None:
        keys = {
            "sends no keys": [b"", b"\xff" * 40, _text(b"\xff\xfe"), _text(b"ssh-ed25519")],
            "is endless": [self._key] * 20_000,
        }.get(self._way, [self._key])
        if self._way == "hangs":
            link.sendall(b"\0")  # enough not to be silent
        elif self._way == "trickles":
            link.sendall(struct.pack(">I", 1000))
            for _ in range(1000):
                link.sendall(b"\0")
                time.sleep(0.2)
        elif request == LIST:
            listed = b"".join(_text(key) + _text(b"Gr\xfc\xdfe") for key in keys)
            link.sendall(_text(struct.pack(">BI", LISTED, len(keys)) + listed))
        elif self._way != "signs nothing":
            link.sendall(_text(bytes([REFUSED])))


def _text(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content
