"""What nodes reached that night, small: 1,000 nodes of 8 GPUs take about half a MiB a night."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import select

from preflight.history.ids import Rows
from preflight.history.night import DIGITS, LONGEST_WORD
from preflight.history.tables import LAYOUTS, MEASURES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from preflight.history.night import Night, Numbers

_LARGEST = 1e300
"""Rounded, a larger one may be none any more."""

_Layout = tuple[str, str, str]
"""(measure, under, units): of most nodes and nights the same."""


class Figures:
    """Writes numbers by the layouts that are known."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._layouts = Rows(connection, LAYOUTS)
        self._measures = Rows(connection, MEASURES)
        self._known: dict[_Layout, int] = {
            (row.measure, row.under, row.units): row.id
            for row in connection.execute(select(LAYOUTS))
        }

    def take(self, night: Night, run: int, nodes: Mapping[str, int]) -> None:
        """Note the numbers of one night."""
        for one in night.numbers:
            if one.node in nodes and any(value is not None for value in one.values):
                self._measures.add(
                    run_id=run,
                    node_id=nodes[one.node],
                    layout_id=self._layout(one),
                    numbers=packed(one.values),
                )
        self._layouts.write()
        self._measures.write()

    def _layout(self, one: Numbers) -> int:
        units = msgspec.json.encode(one.units).decode()
        key = (one.measure, one.under[:LONGEST_WORD], units)
        if key not in self._known:
            self._known[key] = self._layouts.add(measure=key[0], under=key[1], units=units)
        return self._known[key]


def packed(values: tuple[float | None, ...]) -> str:
    """Write numbers as JSON of four significant digits; what is no number is null."""
    return "[" + ",".join(map(_one, values)) + "]"


def _one(value: float | None) -> str:
    if value is None or not abs(value) <= _LARGEST:  # NaN is not
        return "null"
    return f"{value:.{DIGITS}g}"
