"""The fabric over the nights: how much of it was measured, and all waves in one drawing.

Waves share no node, so the rows of each are its own, and the same round of all is one column. Pairs
are held against those of all waves, as colours are for eyes: who is blamed, each wave has judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.fabric.observed import Observed
from preflight.fabric.stored import read_stored
from preflight.report.document import CoverageRow
from preflight.report.fabric_page import fabric_section
from preflight.report.html.page import waves_of
from preflight.report.picture.grid import accused
from preflight.report.since import blame_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from preflight.commands.nightly.waves import Night
    from preflight.report.document import BlameRow, Report
    from preflight.report.public.hide import Hider


UNTRIED = ("not_run", "absent")
"""States of a pair that say nothing of it."""


def covered(
    nodes: Sequence[str],
    leaves: Mapping[str, str],
    topology: str,
    tonight: Sequence[Report],
    earlier: Iterable[Night],
) -> CoverageRow | None:
    """Count pairs of the whole fleet; `earlier`: former waves of which every pair was measured.

    None where no wave was to measure pairs.
    """
    rows = [report.coverage for report in tonight if report.coverage is not None]
    if not rows:
        return None
    now, before = _Met(nodes, leaves), _Met(nodes, leaves)
    for report in tonight:
        now.pairs((row.a, row.b) for row in report.pairs if row.state not in UNTRIED)
    for night in earlier:
        for wave in night:
            before.all_of(wave)
    known = now.joined(before)
    fresh = known.count - before.count
    unseen = len(nodes) * (len(nodes) - 1) // 2 - known.count
    leaf_count = len({leaves[name] for name in nodes if name in leaves})
    shares = [row.measured_share for row in rows if row.measured_share is not None]
    return CoverageRow(
        rounds=sum(row.rounds for row in rows),
        rounds_total=sum(row.rounds_total for row in rows),
        seed=rows[0].seed,
        pairs=len(nodes) * (len(nodes) - 1) // 2,
        pairs_run=now.count,
        pairs_known=known.count,
        # Nights that bring as many pairs as this one that no night had before.
        runs_left=-(-unseen // fresh) if fresh > 0 else None if unseen else 0,
        topology=topology,
        leaf_pairs=leaf_count * (leaf_count - 1) // 2,
        leaf_pairs_run=now.leaf_pairs,
        leaf_pairs_known=known.leaf_pairs,
        repairs=sum(row.repairs for row in rows),
        retests=sum(row.retests for row in rows),
        measured_share=round(sum(shares) / len(shares), 3) if shares else None,
    )


class _Met:
    """Who met whom: a row of bits for each node, so that thousands of nodes cost megabytes."""

    def __init__(self, nodes: Sequence[str], leaves: Mapping[str, str]) -> None:
        self._nodes, self._leaves = nodes, leaves
        self._at = {name: at for at, name in enumerate(nodes)}
        self._rows = [0] * len(nodes)

    def pairs(self, met: Iterable[tuple[str, str]]) -> None:
        """Enter single pairs; who is not of this fleet any more is passed over."""
        for a, b in met:
            if a in self._at and b in self._at:
                self._rows[self._at[a]] |= 1 << self._at[b]
                self._rows[self._at[b]] |= 1 << self._at[a]

    def all_of(self, wave: Iterable[str]) -> None:
        """Enter a wave in which everybody met everybody."""
        places = [self._at[name] for name in wave if name in self._at]
        together = sum(1 << at for at in places)
        for at in places:
            self._rows[at] |= together & ~(1 << at)

    def joined(self, other: _Met) -> _Met:
        """Both together."""
        both = _Met(self._nodes, self._leaves)
        both._rows = [a | b for a, b in zip(self._rows, other._rows, strict=True)]
        return both

    @property
    def count(self) -> int:
        """How many pairs."""
        return sum(row.bit_count() for row in self._rows) // 2

    @property
    def leaf_pairs(self) -> int:
        """How many pairs of different leaves."""
        members: dict[str, int] = {}
        for at, name in enumerate(self._nodes):
            if name in self._leaves:
                members[self._leaves[name]] = members.get(self._leaves[name], 0) | 1 << at
        met: dict[str, int] = {}
        for at, name in enumerate(self._nodes):
            if name in self._leaves:
                met[self._leaves[name]] = met.get(self._leaves[name], 0) | self._rows[at]
        return sum(bool(met[a] & members[b]) for a in met for b in members if a < b)


def fabric_of_waves(
    waves: Sequence[Path], blames: Iterable[BlameRow], hider: Hider | None = None
) -> Callable[[int], str]:
    """Draw it in at most so many bytes, under the way to each wave's own page.

    `hider`: for a public page nobody is named in it, and it leads nowhere; `blames` are hidden.
    """
    links = "" if hider else waves_of([folder.name for folder in waves])
    seen = seen_in(waves)
    if seen is None:
        return lambda _: links
    observed = hider.all_of(seen) if hider else seen
    found = accused(map(blame_of, blames), observed)
    room = len(links.encode())
    return lambda most: links + fabric_section(observed, found, told=True, most=most - room)


def seen_in(waves: Iterable[Path]) -> Observed | None:
    """What was measured in all of these folders; None where nothing was, or nothing is left."""
    each = [one for one in map(_seen, waves) if one is not None]
    if not each:
        return None
    return Observed(
        nodes=tuple(name for one in each for name in one.nodes),
        backend=each[0].backend,
        tried=tuple(pair for one in each for pair in one.tried),
        digests=tuple(digest for one in each for digest in one.digests),
        leaves={name: leaf for one in each for name, leaf in one.leaves.items()},
        silent={name: why for one in each for name, why in one.silent.items()},
    )


def _seen(folder: Path) -> Observed | None:
    try:
        observed = read_stored(folder).observed
    except UsageError:
        return None  # it measured no pairs, or its folder was put away
    return observed if observed.tried else None
