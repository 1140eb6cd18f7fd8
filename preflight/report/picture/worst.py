"""The worst cells as a table: the same without a mouse, without colours, and on paper."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from preflight.fleet.nodeset import fold
from preflight.report.picture.colours import STEPS
from preflight.report.picture.markup import text
from preflight.report.picture.ratios import CUT_SHORT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from preflight.report.picture.grid import Endpoint
    from preflight.report.picture.ratios import Cell, Panel

ROWS = 24

_HEAD = ("pair", "rail", "round", "what", "seen", "times its peers'")


def worst(compared: Sequence[Cell], panels: Sequence[Panel]) -> Iterator[str]:
    """List them, those without result first; nothing where no cell stands out."""
    found = sorted(_rows(compared, panels), key=lambda row: -row[0])
    if not found:
        return
    shown = found[:ROWS]
    many = f"the worst {len(shown)} of {len(found)}" if len(found) > len(shown) else len(found)
    yield f"<details><summary>Cells that stand out, as a table ({many})</summary><table><tr>"
    yield "".join(f"<th>{text(word)}</th>" for word in _HEAD) + "</tr>"
    for ratio, cells in shown:
        times = "-" if ratio >= CUT_SHORT else f"{ratio:.2g} x"
        words = "".join(f"<td>{text(word)}</td>" for word in cells)
        yield f'<tr>{words}<td class="n">{times}</td></tr>'
    yield "</table></details>"


def _rows(
    compared: Sequence[Cell], panels: Sequence[Panel]
) -> Iterator[tuple[float, tuple[str, ...]]]:
    for cell in compared:
        who = (f"{cell.a}-{cell.b}", str(cell.rail), str(cell.round))
        if cell.state != "measured":
            said = f"{cell.state.replace('_', ' ')} {cell.error}".rstrip()
            yield math.inf, (*who, "no result", said)
            continue
        for panel in panels:
            against = panel.pick(cell)
            if against is None or against.ratio is None or against.ratio < STEPS[0].up_to:
                continue
            what = panel.title.split(" (")[0]
            yield against.ratio, (*who, what, panel.say(against))


def standing_out(best: Mapping[Endpoint, float]) -> str:
    """Endpoints that are bad with every partner, in words, node by node, the worst first."""
    bad: dict[str, list[tuple[float, int]]] = {}
    for (name, rail), ratio in best.items():
        if ratio >= STEPS[0].up_to:
            bad.setdefault(name, []).append((ratio, rail))
    if not bad:
        return "No endpoint is bad with every partner."
    order = sorted(bad, key=lambda name: (-max(bad[name])[0], name))
    said = [_node(name, bad[name]) for name in order[:ROWS]]
    more = f" and {len(order) - ROWS} more nodes" if len(order) > ROWS else ""
    return f"Bad with every partner: {', '.join(said)}{more}."


def _node(name: str, own: Sequence[tuple[float, int]]) -> str:
    ratio = max(own)[0]
    rails = fold([str(rail) for _, rail in sorted(own, key=lambda one: one[1])])
    return f"{name} rail {rails} ({'no result' if ratio >= CUT_SHORT else f'{ratio:.2g} x'})"
