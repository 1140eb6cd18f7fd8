"""A process inside a lab host, by the number it has there."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.lab.host import Host

DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Inside:
    """A process started with `Host.spawn`: an orphan there, so its parent is process 1."""

    host: Host
    pid: int
    log: Path
    """What it wrote to standard output and error."""

    @property
    def state(self) -> str:
        """Its letter in /proc/PID/stat; "" when it is gone."""
        stat = self.host.run(["cat", f"/proc/{self.pid}/stat"], check=False).stdout
        return stat.rpartition(")")[2].split()[0] if stat else ""

    def signal(self, name: str) -> None:
        """Send a signal ("STOP", "KILL"); no error if the process is gone."""
        self.host.run(["sh", "-c", f"kill -{name} {self.pid}"], check=False)

    def wait_for(self, state: str) -> None:
        """Wait until it is in that state ("" gone, "D" uninterruptible, "T" stopped)."""
        until(lambda: self.state == state, f"process {self.pid} to be {state or 'gone'}")

    def wait_for_word(self, word: str = "") -> None:
        """Wait until it has written this (or anything)."""
        until(
            lambda: word in (text := self.log.read_text()) and bool(text),
            f"process {self.pid} to say {word or 'something'}",
        )

    def kill(self) -> None:
        """End it; returns when it is gone."""
        self.signal("KILL")
        self.wait_for("")

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Stop it as a host under memory pressure or a debugger would, then let it go on."""
        self.signal("STOP")
        self.wait_for("T")
        try:
            yield
        finally:
            self.signal("CONT")


def until(done: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait for something that happens soon; TimeoutError names it when it does not."""
    end = time.monotonic() + deadline_s
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {deadline_s:g} s for {what}: look at the lab's logs")
        time.sleep(0.02)
