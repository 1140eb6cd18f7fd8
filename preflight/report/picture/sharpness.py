"""What a sweep could have missed as a table: endpoints that were looked at alike in one row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.fabric.words import size
from preflight.fleet.nodeset import fold
from preflight.report.missed import at_size, two_digits
from preflight.report.picture.markup import text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight.report.document import MissedRow

ROWS = 12


def sharpness(rows: Sequence[MissedRow]) -> Iterator[str]:
    """Group equal looks, the dullest first, and say for each size what would have been caught."""
    if not rows:
        return
    sizes = sorted({one.size_bytes for row in rows for one in row.sizes})
    groups: dict[tuple[str, ...], list[MissedRow]] = {}
    for row in rows:
        groups.setdefault(_said(row, sizes), []).append(row)
    yield "<h2>What this sweep could have missed</h2>"
    yield (
        '<p class="small">Spikes that are rarer would not have been caught with 99 %, by the rule '
        "that condemns. A size's own column: spikes that come at operations of that size only, and "
        "how long one must be to count.</p>"
    )
    heads = ("endpoints", "any size", "seconds of load", *(size(one) for one in sizes))
    yield f"<table><tr>{''.join(f'<th>{text(word)}</th>' for word in heads)}</tr>"
    for said, own in list(groups.items())[:ROWS]:
        cells = "".join(f"<td>{text(word)}</td>" for word in said)
        yield f"<tr><td>{text(_who(own))}</td>{cells}</tr>"
    yield "</table>"
    if len(groups) > ROWS:
        yield f"<p>{len(groups) - ROWS} sharper looks are in report.json (missed).</p>"


def _said(row: MissedRow, sizes: Sequence[int]) -> tuple[str, ...]:
    at = {one.size_bytes: at_size(one) for one in row.sizes}
    rate = "no rate" if row.one_in is None else f"1 in {two_digits(row.one_in):,}"
    every = "-" if row.every_s is None else f"one in {row.every_s:.1g} s"
    return (rate, every, *(at.get(one, "not measured") for one in sizes))


def _who(rows: Sequence[MissedRow]) -> str:
    """Fold the nodes of each set of rails: "n[1-8] rails 0-7"."""
    rails: dict[str, list[int]] = {}
    for row in rows:
        rails.setdefault(row.node, []).append(row.rail)
    nodes: dict[str, list[str]] = {}
    for name, own in rails.items():
        nodes.setdefault(fold([str(rail) for rail in sorted(own)]), []).append(name)
    return "; ".join(f"{fold(names)} rail {own}" for own, names in nodes.items())
