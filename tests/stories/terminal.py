"""A real run on a terminal of its own: a test reads along, and strikes in the middle."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from tests.stories.conftest import LONGEST_S, Told, clean_environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Terminal:
    """`pytest --preflight` whose progress is seen as a person sees it."""

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        self._report = folder / "report"
        self.terminal, theirs = os.openpty()
        self.process = subprocess.Popen(
            # A shell's background jobs are born deaf to Ctrl-C; who runs these tests may be one.
            ["env", "--default-signal=INT", sys.executable, "-m", "pytest",
             "-p", "no:cacheprovider", "--preflight", f"--preflight-report={self._report}", *words],
            cwd=folder, env=clean_environment(), stdin=subprocess.DEVNULL,
            stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, progress: str, count: int) -> None:
        """Until the number that this pattern finds in what is on the screen is so large."""
        ends = time.monotonic() + LONGEST_S
        while time.monotonic() < ends:
            seen = re.findall(progress, self.said)
            if seen and count <= int(seen[-1]):
                return
            assert self.process.poll() is None, self.said
            time.sleep(0.02)
        raise AssertionError(self.said)

    def told(self) -> Told:
        """Wait for the end of the run, and take what it left."""
        status = self.process.wait(LONGEST_S)
        self._reader.join(10)
        return Told(status, self.said, "", self._report)

    def end(self) -> None:
        """Whatever became of it, nothing of it outlives the test."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.terminal)

    def _read(self) -> None:
        try:
            while chunk := os.read(self.terminal, 65536):
                self.said += chunk.decode(errors="replace")
        except OSError:
            return  # EIO: nobody has the other side open any more
