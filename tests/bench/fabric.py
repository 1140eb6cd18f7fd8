"""How often simulated faults are named, and healthy fabrics left in peace: a sample, in minutes.

The long form, which goes on where it stopped, is `python -m tests.bench.full`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.bench.accuracy import by_kind, by_size, rows
from tests.bench.decoding import decode
from tests.bench.fabrics import Case

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.bench.fabrics import Name
    from tests.bench.ratio import Row

Quota = dict[int, int]
"""Nodes → how many fabrics."""

FAULTY: dict[Name, Quota] = {
    "rdma": {2: 10, 3: 10, 4: 15, 8: 15, 16: 10, 17: 10, 64: 8, 256: 4, 1024: 1, 4096: 1},
    "recorded": {2: 10, 3: 10, 4: 15, 8: 15, 16: 10, 17: 10, 64: 5},
}
HEALTHY: dict[Name, Quota] = {
    "rdma": {2: 25, 3: 25, 4: 25, 8: 25, 16: 15, 17: 15, 64: 8, 256: 3, 1024: 1, 4096: 1},
    "recorded": {2: 25, 3: 25, 4: 25, 8: 25, 16: 20, 17: 20, 64: 10},
}


def measure() -> Iterator[Row]:
    """Decode the short plan; the tables by size and kind go to the terminal."""
    outcomes = [decode(one) for one in plan(FAULTY, HEALTHY)]
    sys.stderr.write(f"{by_size(outcomes)}\n\n{by_kind(outcomes)}\n")
    for one in outcomes:
        for words in one.wrong:
            sys.stderr.write(f"wrong in {one.case}: {words}\n")
    yield from rows(outcomes)


def plan(
    faulty: Mapping[Name, Quota], healthy: Mapping[Name, Quota], first_seed: int = 0
) -> list[Case]:
    """All cases, those of each size spread over the whole: at any time it is a fair sample."""
    cases = [
        ((turn + 0.5) / count, Case(noise, nodes, is_faulty, first_seed + turn))
        for some, is_faulty in ((faulty, True), (healthy, False))
        for noise, quota in some.items()
        for nodes, count in quota.items()
        for turn in range(count)
    ]
    return [one for _, one in sorted(cases, key=lambda two: two[0])]
