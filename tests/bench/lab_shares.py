"""What many runs over the lab come to: shares with their exact intervals, by what was planted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from tests.bench.lab_runs import HEALTHY
from tests.bench.proportion import clopper_pearson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.lab_runs import Line


class Share(Struct, frozen=True):
    """So many of so many, with the 95 % interval."""

    hits: int
    tries: int
    interval: tuple[float, float]

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.hits} of {self.tries} ({low:.1%} to {high:.1%})"


class Row(Struct, frozen=True):
    """All runs of one kind."""

    what: str
    right: Share
    """Exactly the culprit was named (none if all is healthy), and the exit code was right."""
    wrong: Share
    """A healthy part was named."""


def rows(found: Sequence[Line]) -> list[Row]:
    """By kind, and all faults together."""
    kinds = dict.fromkeys(line.what for line in found)
    groups = {kind: [line for line in found if line.what == kind] for kind in kinds}
    groups["all faults"] = [line for line in found if line.what != HEALTHY]
    return [
        Row(
            kind,
            _share([line.right for line in some]),
            _share([bool(line.wrong) for line in some]),
        )
        for kind, some in groups.items()
        if some
    ]


def table(some: Sequence[Row]) -> str:
    """A line per row."""
    head = f"{'planted':20} {'named exactly':>28} {'healthy part named':>28}"
    lines = [f"{row.what:20} {row.right!s:>28} {row.wrong!s:>28}" for row in some]
    return "\n".join([head, *lines])


def _share(some: Sequence[bool]) -> Share:
    hits = sum(some)
    return Share(hits, len(some), clopper_pearson(hits, len(some)))
