"""Numbers for new rows: the writer holds the lock, so the next one is the highest and one more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import func, insert, select

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from sqlalchemy import Connection, Table

_AT_ONCE = 500
"""Values in one query; SQLite's oldest limit is 999."""


class Rows:
    """New rows of one table: each gets its number at once and is written with all the others."""

    def __init__(self, connection: Connection, table: Table) -> None:
        self._connection = connection
        self._table = table
        highest = connection.execute(select(func.max(table.c.id))).scalar_one()
        self._next = (highest or 0) + 1
        self._waiting: list[dict[str, Any]] = []

    def add(self, **values: object) -> int:
        """Note a row, and say its number."""
        number = self._next
        self._next += 1
        self._waiting.append({"id": number, **values})
        return number

    def write(self) -> None:
        """Write what was noted."""
        if self._waiting:
            self._connection.execute(insert(self._table), self._waiting)
            self._waiting = []


def in_pieces(values: Iterable[Any]) -> Iterator[list[Any]]:
    """Cut a long list into what one query may hold."""
    rest = list(values)
    for start in range(0, len(rest), _AT_ONCE):
        yield rest[start : start + _AT_ONCE]
