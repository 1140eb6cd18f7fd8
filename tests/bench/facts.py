"""What reading a fleet costs: facts of lab hosts against as many bare logins, at the same time."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

from tests.bench.logins import bare_logins
from tests.bench.probing import probe, some
from tests.bench.ratio import Bound, Row, extremes, in_turns, seconds, times

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.cluster import Lab

_BOUND = Bound("at most", 1.5)
_RUNS = {4: 15, 16: 9}
_COLD_RUNS = 5


def measure(lab: Lab) -> Iterator[Row]:
    """Four hosts and sixteen, in this process; then four in a fresh one."""
    inventory = lab.inventory()
    for number, runs in _RUNS.items():
        hosts = some(inventory, number)
        probe(hosts)  # imports and the payload's bundle: once per run, whatever the fleet
        ours, theirs = in_turns(
            runs,
            seconds(partial(probe, hosts)),
            seconds(partial(bare_logins, hosts)),
        )
        yield Row(
            id=f"facts.logins.{number}",
            what=f"facts of {number} hosts / {number} times `ssh host true`",
            ours=extremes(ours),
            theirs=extremes(theirs),
            unit="s",
            value=times(ours, theirs),
            runs=runs,
            bound=_BOUND,
        )
    yield _cold(inventory, 4)


def _cold(inventory: Path, number: int) -> Row:
    hosts = some(inventory, number)
    fresh = [sys.executable, "-m", "tests.bench.probing", str(inventory), str(number)]
    ours, theirs = in_turns(
        _COLD_RUNS,
        seconds(lambda: subprocess.run(fresh, check=True)),
        seconds(lambda: bare_logins(hosts)),
    )
    return Row(
        id=f"facts.logins.{number}.cold",
        what=f"the same of {number} hosts, in a fresh process with its imports",
        ours=extremes(ours),
        theirs=extremes(theirs),
        unit="s",
        value=times(ours, theirs),
        runs=_COLD_RUNS,
    )
