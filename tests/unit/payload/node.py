"""Runs the payload as a node does: as a zip over standard input, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from preflight.transport.bundle import bundle

NONCE = "0123456789abcdef"
PATIENCE_S = 60.0
"""So that a broken payload fails a test rather than hanging it."""

BOOT = """\
import os, sys
left, parts = int(sys.argv[1]), []
while left:
    parts.append(os.read(0, min(left, 1 << 20)))
    left -= len(parts[-1])
fd = os.memfd_create("preflight")
os.write(fd, b"".join(parts))
sys.path[:] = ["/proc/self/fd/%d" % fd] + [path for path in sys.path if path]
import start
start.main(sys.argv[2])
"""


def system_python() -> str:
    """Return a Python that every user of this machine may run; skips the test without one."""
    found = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if found is None:
        pytest.skip("no Python for other users here")
    return found


class Remote:
    """One entry of the payload at work, and the controller's end of its channel."""

    def __init__(
        self,
        entry: str,
        *,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
        before: tuple[str, ...] = (),
        user: int | None = None,
    ) -> None:
        packed = bundle(entry)
        self.process = subprocess.Popen(
            [*before, python, "-I", "-c", BOOT, str(len(packed)), entry],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        self._write(packed)

    def ask(self, **message: Any) -> None:
        """Send one line of JSON."""
        self._write(json.dumps(message).encode() + b"\n")

    def answer(self) -> bytes:
        """Return the next document as it came, without its frame."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        mark = f"@preflight {NONCE} ".encode()
        assert line.startswith(mark), (line, self._stderr() if not line else b"")
        return line[len(mark) :].rstrip(b"\n")

    def hang_up(self) -> None:
        """Close the controller's end of standard input."""
        assert self.process.stdin
        self.process.stdin.close()

    def leave(self) -> int:
        """Wait until it is gone, by itself, and return its exit status."""
        try:
            status = self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream
            stream.close()
        return status

    def _write(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def _stderr(self) -> bytes:
        assert self.process.stderr
        return self.process.stderr.read()
