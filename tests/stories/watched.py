"""A watched launch that notes every signal it gets, and does what a test wants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.stories.conftest import clean_environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LONGEST_S = 60.0
"""Only so that a hang ends the test; nothing is asserted about time."""

NOTING = """\
import os, signal, sys, time
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(number, frame):
    os.write(log, (signal.Signals(number).name + "\\n").encode())
for name in "HUP INT QUIT TERM USR1 USR2 CONT WINCH".split():
    signal.signal(getattr(signal, "SIG" + name), note)
os.write(log, f"pid {os.getpid()} tty {os.isatty(1)} group {os.getpgrp()}\\n".encode())
while not os.path.exists(sys.argv[1] + ".end"):
    time.sleep(0.02)
sys.exit(5)
"""


def until(holds: Callable[[], bool]) -> None:
    """Wait for it."""
    end = time.monotonic() + LONGEST_S
    while not holds():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


@dataclass
class Watched:
    """`preflight watch` around that launch, in a process group of its own."""

    folder: Path
    words: tuple[str, ...] = ()
    started: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        script = self.folder / "noting.py"
        script.write_text(NOTING)
        launch = [sys.executable, str(script), str(self.log)]
        self.started = subprocess.Popen(
            [sys.executable, "-m", "preflight", "watch", *self.words, "--", *launch],
            cwd=self.folder,
            env=clean_environment(),
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "stderr").open("wb"),
            process_group=0,
        )
        until(lambda: bool(self.noted()))

    @property
    def log(self) -> Path:
        """What the launch notes."""
        return self.folder / "noted"

    @property
    def launch(self) -> int:
        """The launch's own process."""
        return int(self.log.read_text().split()[1])

    def noted(self) -> list[str]:
        """The signals it got, behind its first line."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def got(self, number: signal.Signals) -> int:
        """How often it got that one."""
        return self.noted()[1:].count(number.name)

    def end(self) -> int:
        """Let it end by itself with 5; how the watch ended."""
        (self.folder / "noted.end").touch()
        return self.started.wait(LONGEST_S)

    def close(self) -> None:
        """Whatever came of it, nothing stays."""
        for pid in (self.started.pid, self.launch):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.started.wait()
