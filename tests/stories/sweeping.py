"""A real run over the lab's hosts that a test strikes in the middle of its sweep."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.stories.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.cluster import Lab
    from tests.lab.host import Host
    from tests.lab.inventory import Tables

CLEAN_S = 20.0
"""What is expected: after so long nothing of a run is left on any host."""

FIRST_H1_H4 = 5
"""A seed whose first round holds h1-h4 and h2-h3, the second h1-h3 and h2-h4."""

MARGIN_S = 15.0
"""For a test machine that does several other things at once."""


class Sweeping(Terminal):
    """A run over the lab's hosts: how far its pairs are, and what it leaves on the hosts."""

    def __init__(self, lab: Lab, folder: Path, **changes: Tables) -> None:
        self._lab = lab
        self._before = {name: everything(host) for name, host in lab.hosts.items()}
        inventory = lab.inventory("inventory.toml", **changes)
        words = [f"--preflight-inventory={inventory}", f"--preflight-seed={FIRST_H1_H4}",
                 "--preflight-fail-fast=never", "-m", "preflight_fabric"]  # fmt: skip
        super().__init__(folder, words)

    def wait_for_pairs(self, count: int) -> None:
        """Until so many of the six pairs are in, by the progress that a person sees."""
        self.wait_for(r"pairs +(\d+)/6 ", count)

    def left(self, *names: str) -> dict[str, set[str]]:
        """What runs on the hosts (all, or these) that did not before; their own sshd aside."""
        now = {name: everything(self._lab.hosts[name]) for name in names or self._lab.hosts}
        return {name: more for name in now if (more := now[name] - self._before[name])}

    def wait_until_clean(self, *names: str) -> float:
        """Until nothing of the run is left there, as expected; returns after how many seconds."""
        began = time.monotonic()
        while left := self.left(*names):
            assert time.monotonic() < began + CLEAN_S + MARGIN_S, left
            time.sleep(0.1)
        return time.monotonic() - began


@contextmanager
def sweeping(lab: Lab, folder: Path, **changes: Tables) -> Iterator[Sweeping]:
    """Start a run and end it with the test, whatever became of it; `changes` of the inventory."""
    run = Sweeping(lab, folder, **changes)
    try:
        yield run
    finally:
        run.end()


def everything(host: Host) -> set[str]:
    """Every process of a host by number and command, but for its sshd and our own looking."""
    listing = host.run(["ps", "-eo", "pid,comm,args", "--no-headers"]).stdout
    lines = (line.split(None, 2) for line in listing.splitlines())
    return {" ".join(words) for words in lines if words[1] not in ("ps", "sshd")}


def agent(host: Host) -> int:
    """The host's sweep agent: the parent of its ranks."""
    listing = host.run(["ps", "-eo", "ppid,comm", "--no-headers"]).stdout
    return next(int(p) for p, comm in map(str.split, listing.splitlines()) if "-rank" in comm)
