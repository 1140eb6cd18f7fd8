"""The shape of a history, and how an older one is brought to it: nights are never thrown away.

Schema 1 was `coverage.json`, the rounds alone. It is taken in once, by whoever makes the database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import insert, inspect, select, text, update

from preflight.errors import UsageError
from preflight.history.coverage_file import NAME, read_coverage
from preflight.history.tables import FLEETS, META, METADATA
from preflight.history.trouble import HistoryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from preflight.history.place import Place

SCHEMA = 2


def _waves(connection: Connection) -> None:
    """Schema 3: the waves of one sweep are known as such."""
    added = "ALTER TABLE runs ADD COLUMN sweep VARCHAR(64) DEFAULT '' NOT NULL"
    connection.execute(text(added))


STEPS: tuple[Callable[[Connection], None], ...] = (_waves,)
"""What leads from schema 2 to 3, from 3 to 4, and so on. A step that was released is not changed:
it names its tables and columns itself, as `tables.py` may have gone on since."""


def newest() -> int:
    """The schema that this preflight writes."""
    return SCHEMA + len(STEPS)


def known_schema(connection: Connection, place: Place) -> int:
    """The schema of a database, 0 for an empty one; HistoryError for one that is not ours."""
    its = inspect(connection)
    tables = its.get_table_names()
    if place.file is not None and (its.get_view_names() or _triggers(connection)):
        raise HistoryError(
            f"cannot use the history {place.words}: it has views or triggers, which none of ours "
            "has; give another folder: --preflight-history=DIR"
        )
    if META.name not in tables:
        if tables and place.file is not None:
            raise HistoryError(
                f"cannot use the history {place.words}: it is somebody else's database; give "
                "another folder: --preflight-history=DIR"
            )
        return 0
    found = connection.execute(select(META.c.schema_version)).scalar_one()
    if not isinstance(found, int) or found > newest():
        raise HistoryError(
            f"cannot use the history {place.words}: a newer preflight wrote it (schema {found}, "
            f"this one knows {newest()}); update preflight, or give another folder: "
            "--preflight-history=DIR"
        )
    return found


def _triggers(connection: Connection) -> bool:
    found = connection.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE type = 'trigger'")
    return found.first() is not None


def prepare(connection: Connection, place: Place) -> None:
    """Make the tables, or bring them up to date, and hold the lock of whoever writes."""
    found = known_schema(connection, place)
    if not found:
        METADATA.create_all(connection)
        connection.execute(insert(META).values(id=1, schema_version=newest(), writes=0))
        _take_in(connection, place)
    for step in STEPS[found - SCHEMA :] if found else ():
        step(connection)
    connection.execute(
        update(META).where(META.c.id == 1).values(schema_version=newest(), writes=META.c.writes + 1)
    )


def _take_in(connection: Connection, place: Place) -> None:
    """Take in the rounds that a folder's `coverage.json` knows of."""
    if place.folder is None or not (place.folder / NAME).exists():
        return
    try:
        fleets = read_coverage(place.folder).fleets
    except UsageError as error:
        raise HistoryError(str(error)) from error
    rows = [
        {
            "id": number,
            "key": key,
            "nodes": kept.nodes,
            "past": msgspec.json.encode(kept.past).decode(),
            "last_run": 0,
        }
        for number, (key, kept) in enumerate(fleets.items(), 1)
    ]
    if rows:
        connection.execute(insert(FLEETS), rows)
