"""py-spy that travels: for a node without one, it is run from memory and leaves nothing there."""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import platform
import sys
import tempfile
import time
import zlib

from . import spy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

WAIT_S = 8.0
"""For 3 MB to come over a slow line."""

_LARGEST = 32 << 20


def asks(emit: Callable[[dict[str, Any]], None]) -> bool:
    """Say that this node lacks py-spy; False where nothing that travels is run: a preinstalled one.

    Whoever installed the payload (docs/preinstalled.md) was promised that nothing else is.
    """
    if not any(path.startswith("/proc/self/fd/") for path in sys.path):
        return False
    emit({"lacks": "py-spy", "machine": platform.machine()})
    return True


class Carried:
    """What the controller sent, as a file that can be run; gone when this process is."""

    def __init__(self, lines: Callable[[float], dict[str, Any] | None], until: float) -> None:
        self._file: int | None = None
        self.spy: spy.Spy | None = None
        self.refused = ""
        """Why there is no `spy`."""
        ends = min(until, time.monotonic() + WAIT_S)
        try:
            content = _received(lines, ends)
        except TimeoutError:
            self.refused = "py-spy was on its way and did not arrive in time"
            return
        except (ValueError, zlib.error, KeyError, TypeError):
            self.refused = "what arrived as py-spy is damaged"
            return
        if isinstance(content, str):
            self.refused = content
            return
        self.spy = self._runs(content, until)

    def _runs(self, content: bytes, until: float) -> spy.Spy | None:
        """Return it as soon as one way to run it works: from memory, else from a file of ours."""
        for place in (_in_memory, _in_a_file):
            with contextlib.suppress(OSError, AttributeError):
                self._file = place(content)
                path = f"/proc/{os.getpid()}/fd/{self._file}"
                version = spy.version_of(path, until)
                if version:
                    return spy.Spy(path, f"py-spy {version} that travelled")
            self.close()
        self.refused = "py-spy came, but this node runs nothing from memory or its temporary folder"
        return None

    def close(self) -> None:
        """Leave nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _in_memory(content: bytes) -> int:
    file = os.memfd_create("preflight-py-spy")
    _write(file, content)
    return file


def _in_a_file(content: bytes) -> int:
    """Return an open file without a name; the kernel runs none that is open for writing."""
    file, path = tempfile.mkstemp(prefix="preflight-")
    try:
        _write(file, content)
        os.fchmod(file, 0o700)
        return os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)  # not by its name
    finally:
        os.unlink(path)
        os.close(file)


def _received(lines: Callable[[float], dict[str, Any] | None], ends: float) -> bytes | str:
    """Return the program, or as text why it does not come; TimeoutError, ValueError if damaged."""
    packed = bytearray()
    while True:
        message = lines(max(0.0, ends - time.monotonic()))
        if message is None:
            return "nobody sent py-spy"
        if "none" in message:
            return str(message["none"])
        packed += base64.b64decode(message["part"], validate=True)
        if len(packed) > _LARGEST:
            raise binascii.Error("too much")
        if not message.get("more"):
            return zlib.decompressobj().decompress(bytes(packed), _LARGEST)


def _write(file: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]
