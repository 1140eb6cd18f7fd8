"""The fabric of a whole sweep in one drawing: the pairs of all waves beside each other.

Waves share no node, so the rows of each are its own, and the same round of all is one column. Pairs
are held against those of all waves, as colours are for eyes: who is blamed, each wave has judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.fabric.observed import Observed
from preflight.fabric.stored import read_stored
from preflight.report.fabric_page import fabric_section
from preflight.report.html.waves import waves_of
from preflight.report.picture.accused import accused
from preflight.report.rebuilt import blame_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from preflight.report.document import BlameRow
    from preflight.report.public.hide import Hider


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
