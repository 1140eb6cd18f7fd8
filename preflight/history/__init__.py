"""What earlier runs measured: a database, and the queries that a run makes.

    from preflight.history import reading
    from preflight.history.place import parse_place

    with reading(parse_place("/srv/nightly", Path.cwd())) as history:  # or "postgresql://..."
        ran = history.last_run()  # a PastRun, None if there is none
        history.changes(ran)  # Changes; a sweep's waves are one night

A folder without a history has no runs: `last_run()` is None, and so on. A history that cannot be
read raises `HistoryError` (a UsageError of one line): a run or a report prints the line and goes on
without. `reading` loads SQLAlchemy, the package itself does not.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from preflight.history.place import Place, exists

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.history.queries import History


_NOTHING = Place(None, "sqlite://")
"""An empty history in memory: it answers the same questions as any other."""


@contextmanager
def reading(place: Place) -> Iterator[History]:
    """Open a history to read it as of one moment, even while another run writes.

    HistoryError if it cannot be read.
    """
    from preflight.history.queries import History
    from preflight.history.tables import METADATA, has_tables, refuse_long_texts, transaction

    stored = False
    if exists(place):
        with transaction(place, writes=False) as connection:
            stored = has_tables(connection, place)
    with transaction(place if stored else _NOTHING, writes=False) as connection:
        if not stored:
            METADATA.create_all(connection)
        refuse_long_texts(connection, place)
        yield History(connection)
