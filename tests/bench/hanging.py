"""How long `preflight diagnose` takes over eight ranks that hang on four hosts, as typed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.bench.logins import bare_logins
from tests.bench.probing import some
from tests.bench.ratio import Bound, Row, extremes, in_turns, seconds, times
from tests.lab.hangs.asked import diagnose
from tests.lab.hangs.job import HOSTS
from tests.lab.hangs.kept import KeptJob
from tests.lab.hangs.situations import situations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.cluster import Lab

_RUNS = 5
_BOUND = Bound("at most", 10)
_RANK = 5


def measure(lab: Lab) -> Iterator[Row]:
    """A rank in its DataLoader must be named each time; in turns with bare logins to its hosts."""
    inventory = lab.inventory("hang.toml")
    hosts = some(inventory, HOSTS)
    (situation,) = (one for one in situations(_RANK, ()) if one.name == "dataloader")

    def ours() -> float:
        began = time.perf_counter()
        told = diagnose(inventory, "--json", "--nodes", f"h[1-{HOSTS}]")
        took = time.perf_counter() - began
        if off := situation.expected.off(told.answer):
            raise RuntimeError(f"the diagnosis is not right: {off}")
        return took

    with KeptJob(lab) as kept, kept.hanging(situation):
        ours()  # compiles what is compiled once
        mine, bare = in_turns(_RUNS, ours, seconds(lambda: bare_logins(hosts)))
    what = f"preflight diagnose of 8 hanging ranks on {HOSTS} hosts"
    yield Row(
        id="diagnose.time",
        what=f"{what}, as typed: wall time",
        unit="s",
        value=extremes(mine),
        value_unit="s",
        runs=_RUNS,
        bound=_BOUND,
        note="of which it waits 3 s between its two looks",
    )
    yield Row(
        id="diagnose.logins",
        what=f"{what} / {HOSTS} times `ssh host true`, all at once",
        ours=extremes(mine),
        theirs=extremes(bare),
        unit="s",
        value=times(mine, bare),
        runs=_RUNS,
    )
