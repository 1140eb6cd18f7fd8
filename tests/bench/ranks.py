"""Four hosts judged by the job's own ranks and over SSH: the same verdicts, in what time."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.ratio import Row, extremes, in_turns, seconds, times
from tests.lab import wire
from tests.stories.conftest import Told, clean_environment
from tests.stories.torchrun import Agents, start_on, without_logins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.cluster import Lab

_HOSTS, _RUNS = 4, 3
_NEVER = "--preflight-fail-fast=never"


def measure(lab: Lab) -> Iterator[Row]:
    """Whole commands, with a GPU gone on one host and a slow link on another."""
    hosts = list(lab.hosts.values())[:_HOSTS]
    inventory = f"--preflight-inventory={lab.inventory()}"
    names = ",".join(host.name for host in hosts)
    found: list[set[tuple[str, str, str]]] = []

    def by_ranks() -> None:
        with tempfile.TemporaryDirectory() as folder, Agents(Path(folder)) as job:
            start_on(job, hosts, inventory, _NEVER)
            found.append(_verdicts(job.told()))

    def over_ssh() -> None:
        with tempfile.TemporaryDirectory() as folder:
            found.append(_verdicts(_judged(Path(folder), inventory, names)))

    hosts[1].set_scenario(hosts[1].scenario.without_gpu(3))
    try:
        with wire.slow_link(hosts[3]):
            ours, theirs = in_turns(_RUNS, seconds(by_ranks), seconds(over_ssh))
    finally:
        lab.heal()
    if any(one != found[0] for one in found):
        differing = found[0].union(*found) - found[0].intersection(*found)
        raise RuntimeError(f"the two ways differ in {sorted(differing)}")
    yield Row(
        id="torchrun.ssh",
        what=f"{_HOSTS} hosts judged by torchrun's ranks / over SSH, {len(found[0])} same verdicts",
        ours=extremes(ours),
        theirs=extremes(theirs),
        unit="s",
        value=times(ours, theirs),
        runs=_RUNS,
    )


def _judged(folder: Path, *words: str) -> Told:
    *options, names = words
    report = folder / "report"
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--preflight"]
    done = subprocess.run(
        [*pytest, *options, _NEVER, f"--preflight-nodes={names}", f"--preflight-report={report}"],
        cwd=folder,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return Told(done.returncode, done.stdout, done.stderr, report)


def _verdicts(told: Told) -> set[tuple[str, str, str]]:
    if told.exit != 1:
        raise RuntimeError(f"exit {told.exit}, not 1: {told.out[-2000:]}{told.err[-2000:]}")
    return without_logins(told.outcomes())
