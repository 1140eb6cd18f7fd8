"""Tables of several reports as one; a pair of nodes is in no two waves of a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.report.overrides import NumberRow, OffRow, Overrides, WaiverRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from preflight.report.document import MissedRow, PairRow, Report, ShapeRow

MOST_MISSED, MOST_SHAPES = 512, 256
"""As in every report."""


def joined_pairs(reports: Sequence[Report]) -> tuple[PairRow, ...]:
    """All pairs; rounds are counted on, so that one number is one moment."""
    rows: list[PairRow] = []
    for report, before in _counted(reports):
        rows += [replace(row, round=row.round + before) for row in report.pairs]
    return tuple(rows)


def joined_shapes(reports: Sequence[Report]) -> tuple[ShapeRow, ...]:
    """The strongest of all, with the same numbers of rounds."""
    rows = [
        replace(row, round=row.round + before)
        for report, before in _counted(reports)
        for row in report.shapes
    ]
    return tuple(sorted(rows, key=lambda row: -row.strength)[:MOST_SHAPES])


def most_missed(reports: Sequence[Report]) -> tuple[MissedRow, ...]:
    """The dullest looks of all; no rate at all is duller than any."""
    rows = [row for report in reports for row in report.missed]
    return tuple(sorted(rows, key=lambda row: row.one_in or 0.0)[:MOST_MISSED])


def joined_overrides(told: Iterable[Overrides]) -> Overrides:
    """What the inventory laid over the checks, each of its lines once with all its nodes."""
    waivers: dict[object, WaiverRow] = {}
    off: dict[object, OffRow] = {}
    numbers: dict[object, NumberRow] = {}
    for one in told:
        for waiver in one.waivers:
            key = (waiver.check, waiver.nodes, waiver.until, waiver.reason)
            before = waivers[key].verdicts if key in waivers else 0
            waivers[key] = replace(waiver, verdicts=waiver.verdicts + before)
        for switch in one.off:
            known = off.setdefault((switch.check, switch.by), switch)
            off[switch.check, switch.by] = replace(known, nodes=_both(known.nodes, switch.nodes))
        for number in one.numbers:
            place = (number.name, number.value, number.by)
            held = numbers.setdefault(place, number)
            numbers[place] = replace(held, nodes=_both(held.nodes, number.nodes))
    return Overrides(
        waivers=tuple(waivers.values()), off=tuple(off.values()), numbers=tuple(numbers.values())
    )


def _both(one: Iterable[str], other: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*one, *other)))


def _counted(reports: Sequence[Report]) -> Iterator[tuple[Report, int]]:
    """Each report, and how many rounds there were before it."""
    before = 0
    for report in reports:
        yield report, before
        before += max((row.round + 1 for row in report.pairs), default=0)
