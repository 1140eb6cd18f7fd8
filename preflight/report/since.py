"""What changed since an earlier run: new, still bad, recovered, and what nobody looked at again.

Gone is not healed: who recovers was judged again by the same check and came out fine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from preflight.check import FLEET
from preflight.report.night import Bad, Night
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from preflight.report.document import Report, VerdictRow

_JUDGED = (Outcome.OK, Outcome.WARN, Outcome.WAIVED)


class Since(Struct, frozen=True, kw_only=True):
    """The four kinds, each in order; `before` is the run that this one is held against."""

    before: Night
    new: tuple[Bad, ...]
    still: tuple[Bad, ...]
    recovered: tuple[Bad, ...]
    unseen: tuple[Bad, ...]


def since(before: Night, now: Night, report: Report) -> Since:
    """Hold a run against an earlier one."""
    then, here = set(before.bad), set(now.bad)
    fine = _Fine(report)
    gone = sorted(then - here)
    return Since(
        before=before,
        new=tuple(sorted(here - then)),
        still=tuple(sorted(here & then)),
        recovered=tuple(one for one in gone if fine.again(one)),
        unseen=tuple(one for one in gone if not fine.again(one)),
    )


class _Fine:
    """Who was judged by which check in this run, and came out fine."""

    def __init__(self, report: Report) -> None:
        self._ready = frozenset(report.fleet.ready)
        self._known = frozenset(report.fleet.nodes)
        self._judged: dict[str, set[str]] = {}
        for row in report.verdicts:
            if row.outcome in _JUDGED:
                self._judged.setdefault(row.check, set()).update(_about(row, self._known))

    def again(self, bad: Bad) -> bool:
        judged = self._judged.get(bad.check, set())
        if bad.subject in judged:
            return True
        # "h2 rail 3" and "pair h1-h2" are parts of nodes that pairs are judged by.
        nodes = nodes_in(bad.subject, self._known)
        return bool(nodes) and self._ready.issuperset(nodes) and judged.issuperset(nodes)


def _about(row: VerdictRow, known: frozenset[str]) -> Iterable[str]:
    if row.subject == FLEET or row.subject in known:
        return (row.subject,)
    return (row.subject, f"pair {row.subject}", *nodes_in(row.subject, known))


def nodes_in(subject: str, known: frozenset[str]) -> Sequence[str]:
    """Name the nodes of a subject: "h1", "h1-h2", "pair h1-h2", "h1 rail 3"; names hold dashes."""
    if subject in known:
        return (subject,)
    plain = subject.removeprefix("pair ").partition(" rail ")[0]
    if plain in known:
        return (plain,)
    words = plain.split("-")
    halves = (("-".join(words[:cut]), "-".join(words[cut:])) for cut in range(1, len(words)))
    return next((pair for pair in halves if known.issuperset(pair)), ())
