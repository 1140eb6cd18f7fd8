"""Opening a history: one transaction at a time, and every refusal of a database in one line."""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from preflight.history.place import in_words
from preflight.history.trouble import HistoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from preflight.history.place import Place

PATIENCE_S = 10.0
"""For another run that is writing; a night of 1,000 nodes takes about one second."""

_WAL_FILES = ("-wal", "-shm")


@contextmanager
def transaction(place: Place, *, writes: bool) -> Iterator[Connection]:
    """Hold one transaction: all of it is kept, or nothing. HistoryError for whatever goes wrong.

    Who writes holds the lock from the start, so that what he read stays true until he is done.
    """
    engine = _engine(place, writes=writes)
    try:
        with engine.connect() as connection, connection.begin():
            yield connection
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise HistoryError(in_words(place, str(getattr(error, "orig", None) or error))) from error
    finally:
        engine.dispose()


def _engine(place: Place, *, writes: bool) -> Engine:
    if place.file is None:
        try:
            return create_engine(place.url, poolclass=NullPool)
        except (ImportError, NoSuchModuleError) as error:
            raise HistoryError(
                f"cannot use the history {place.words}: {error}; install the database's driver "
                "beside preflight (psycopg for postgresql+psycopg://)"
            ) from error
        except ArgumentError as error:
            raise HistoryError(in_words(place, str(error))) from error
    engine = create_engine(
        "sqlite://", creator=lambda: _connect(place, writes=writes), poolclass=NullPool
    )
    begin = "BEGIN IMMEDIATE" if writes else "BEGIN"

    @event.listens_for(engine, "begin")
    def _(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _connect(place: Place, *, writes: bool) -> sqlite3.Connection:
    """Connect without Python's own idea of when a transaction begins."""
    connection = _file(place, "mode=rw" if writes else "mode=ro")
    connection.execute("PRAGMA trusted_schema = OFF")  # what the file itself says runs no function
    if writes:
        connection.execute("PRAGMA synchronous = NORMAL")
        # A night touches a page per node and index: they should be read once.
        connection.execute("PRAGMA cache_size = -65536")
        _write_ahead(connection)
    elif not _readable(connection):
        connection.close()
        # A file that nobody writes, where we may not: its index of the log cannot be made.
        connection = _file(place, "mode=ro&immutable=1" if _settled(place) else "mode=ro")
    return connection


def _file(place: Place, how: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(place.file))}?{how}",
        uri=True,
        timeout=PATIENCE_S,
        isolation_level=None,
        check_same_thread=False,
    )


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Let readers read while somebody writes; on a file system that cannot, do without."""
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise


def _readable(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    except sqlite3.OperationalError as error:
        return not any(word in str(error) for word in ("unable to open", "readonly"))
    return True


def _settled(place: Place) -> bool:
    """Whether all that was written is in the file itself."""
    file = place.file
    return file is not None and not any(os.access(f"{file}{end}", os.F_OK) for end in _WAL_FILES)
