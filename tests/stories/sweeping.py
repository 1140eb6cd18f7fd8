"""A real run over the lab's hosts that a test strikes in the middle of its sweep."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.stories.conftest import LONGEST_S, Told, clean_environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.cluster import Lab
    from tests.lab.host import Host
    from tests.lab.inventory import Tables

CLEAN_S = 20.0
"""What is promised: after so long nothing of a run is left on any host."""

FIRST_H1_H4 = 5
"""A seed whose first round holds h1-h4 and h2-h3, the second h1-h3 and h2-h4."""

MARGIN_S = 15.0
"""For a test machine that does several other things at once."""


class Sweeping:
    """`pytest --preflight` on a terminal of its own, whose progress a test can wait for."""

    def __init__(self, lab: Lab, folder: Path, **changes: Tables) -> None:
        self._report = folder / "report"
        self._lab = lab
        self._before = {name: everything(host) for name, host in lab.hosts.items()}
        self.terminal, theirs = os.openpty()
        inventory = lab.inventory("inventory.toml", **changes)
        words = [f"--preflight-inventory={inventory}", f"--preflight-report={self._report}",
                 f"--preflight-seed={FIRST_H1_H4}", "--preflight-fail-fast=never",
                 "-m", "preflight_fabric"]  # fmt: skip
        self.process = subprocess.Popen(
            # A shell's background jobs are born deaf to Ctrl-C; who runs these tests may be one.
            [
                "env",
                "--default-signal=INT",
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "no:cacheprovider",
                "--preflight",
                *words,
            ],
            cwd=folder,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for_pairs(self, accounts: int) -> None:
        """Until so many ends of pairs are in, by the progress that a person sees."""
        ends = time.monotonic() + LONGEST_S
        while time.monotonic() < ends:
            seen = re.findall(r"pairs +(\d+)/12 ", self.said)
            if seen and accounts <= int(seen[-1]):
                return
            assert self.process.poll() is None, self.said
            time.sleep(0.02)
        raise AssertionError(self.said)

    def told(self) -> Told:
        """Wait for the end of the run, and take what it left."""
        status = self.process.wait(LONGEST_S)
        self._reader.join(10)
        return Told(status, self.said, "", self._report)

    def left(self, *names: str) -> dict[str, set[str]]:
        """What runs on the hosts (all, or these) that did not before; their own sshd aside."""
        now = {name: everything(self._lab.hosts[name]) for name in names or self._lab.hosts}
        return {name: more for name in now if (more := now[name] - self._before[name])}

    def wait_until_clean(self, *names: str) -> float:
        """Until nothing of the run is left there, as promised; returns after how many seconds."""
        began = time.monotonic()
        while left := self.left(*names):
            assert time.monotonic() < began + CLEAN_S + MARGIN_S, left
            time.sleep(0.1)
        return time.monotonic() - began

    def _read(self) -> None:
        try:
            while chunk := os.read(self.terminal, 65536):
                self.said += chunk.decode(errors="replace")
        except OSError:
            return  # EIO: nobody has the other side open any more


@contextmanager
def sweeping(lab: Lab, folder: Path, **changes: Tables) -> Iterator[Sweeping]:
    """Start a run and end it with the test, whatever became of it; `changes` of the inventory."""
    run = Sweeping(lab, folder, **changes)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.wait()
        os.close(run.terminal)


def everything(host: Host) -> set[str]:
    """Every process of a host by number and command, but for its sshd and our own looking."""
    listing = host.run(["ps", "-eo", "pid,comm,args", "--no-headers"]).stdout
    lines = (line.split(None, 2) for line in listing.splitlines())
    return {" ".join(words) for words in lines if words[1] not in ("ps", "sshd")}


def agent(host: Host) -> int:
    """The host's sweep agent: the parent of its ranks."""
    listing = host.run(["ps", "-eo", "ppid,comm", "--no-headers"]).stdout
    return next(int(p) for p, comm in map(str.split, listing.splitlines()) if "-rank" in comm)
