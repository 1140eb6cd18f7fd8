"""A system's log that stands still: a writer waits until it is read."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to put another /dev/log there")
_INSIDE = (
    "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3"
    ' && ln -s "$1" /dev/log && shift && exec "$@"'
)


@contextmanager
def stalled_log(folder: Path) -> Iterator[list[str]]:
    """Yield the words before a command for which /dev/log is full."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as writer,
    ):
        log.bind(str(folder / "log"))
        writer.connect(str(folder / "log"))
        with suppress(BlockingIOError):
            while True:
                writer.send(b"x", socket.MSG_DONTWAIT)
        yield ["unshare", "--mount", "/bin/sh", "-c", _INSIDE, "sh", str(folder / "log")]
