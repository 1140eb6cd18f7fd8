"""What earlier runs measured: the database that keeps it, and what a run asks of it.

    from preflight.history import reading
    from preflight.history.place import place_of

    with reading(place_of("/srv/nightly", Path.cwd())) as history:  # or "postgresql://..."
        ran = history.last_run(["gpu041", "gpu042"])  # a Ran, None if there is none
        history.changes(ran, since=history.since(ran))  # Changes; a sweep's waves are one night

A folder without a history has no runs: `last_run()` is None, and so on. `HistoryError` (a
UsageError, one line) for one that cannot be read: a run or a report says that line and goes on
without. SQLAlchemy is loaded by `reading`, not by this package itself.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from preflight.history.place import Place, there

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.history.queries import History


_NOTHING = Place(None, "sqlite://")
"""In memory, so that of no history the same is asked as of any other."""


@contextmanager
def reading(place: Place) -> Iterator[History]:
    """Hold a history open to read: everything is told as of one moment, whoever writes meanwhile.

    One of an older schema is brought up to date first. HistoryError if it cannot be read.
    """
    from preflight.history.queries import History
    from preflight.history.tables import METADATA, known_schema, newest, prepare, transaction

    schema = 0
    if there(place):
        with transaction(place, writes=False) as connection:
            schema = known_schema(connection, place)
    if 0 < schema < newest():
        with transaction(place, writes=True) as connection:
            prepare(connection, place)
    with transaction(place if schema else _NOTHING, writes=False) as connection:
        if not schema:
            METADATA.create_all(connection)
        yield History(connection)
