"""The tables of a history (schema 5), and one transaction at a time.

This module numbers the rows, not the database: a writer holds the only lock. What repeats
(sentences, names of units) is stored once and referenced.
"""

from __future__ import annotations

import itertools
import os
import re
import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sqlalchemy import (
    Column,
    Engine,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    cast,
    create_engine,
    event,
    func,
    insert,
    inspect,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from preflight.history.place import Place, explain_refusal, refuse_others_files, unusable
from preflight.history.run_record import HistoryError, PairCoverage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sqlalchemy import ColumnElement, Connection
    from sqlalchemy.schema import SchemaItem

    _Row = tuple[object, ...]


METADATA = MetaData()


def _numbered_table(name: str, *columns: SchemaItem) -> Table:
    """A table in which each row has a number."""
    number = Column("id", Integer, primary_key=True, autoincrement=False)
    return Table(name, METADATA, number, *columns)


def _run_column(name: str = "run_id", *, nullable: bool = False) -> Column[int]:
    return Column(name, ForeignKey("runs.id"), nullable=nullable)


def _text_column() -> Column[int]:
    return Column("text_id", ForeignKey("texts.id"), nullable=False)


META = _numbered_table(
    "preflight_history",
    Column("schema_version", Integer, nullable=False),
    Column("writes", Integer, nullable=False),  # changed first by every writer: it is the lock
)

FLEETS = _numbered_table(
    "fleets",
    Column("key", String(64), nullable=False, unique=True),
    Column("nodes", Text, nullable=False),
    Column("past", Text, nullable=False),
    Column("last_run", Integer, nullable=False),
)

RUNS = _numbered_table(
    "runs",
    Column("nonce", String(64), nullable=False),
    Column("fleet_id", ForeignKey("fleets.id"), nullable=False, index=True),
    Column("started_s", Float, nullable=False, index=True),
    Column("seconds", Float, nullable=False),
    Column("tier", String(16), nullable=False),
    *(Column(name, Integer, nullable=False) for name in ("nodes", "ready", "not_ready")),
    Column("systemic", SmallInteger, nullable=False),
    *(Column(name, Integer) for name in PairCoverage.__struct_fields__),
    # The sweep of which it is a wave: "" for a single run.
    Column("sweep", String(64), nullable=False, server_default=""),
)

NODES = _numbered_table(
    "nodes",
    Column("name", String(255), nullable=False, index=True),
    Column("serial", String(128), unique=True),
    Column("first_run", Integer, nullable=False),
    Column("last_run", Integer, nullable=False),
)

GPUS = _numbered_table(
    "gpus",
    Column("uuid", String(128), nullable=False, unique=True),
    Column("model", String(128), nullable=False),
)

PLACES = _numbered_table(
    "places",
    Column("gpu_id", ForeignKey("gpus.id"), nullable=False, index=True),
    Column("node_id", ForeignKey("nodes.id"), nullable=False, index=True),
    Column("slot", Integer, nullable=False),
    _run_column("since_run"),
    _run_column("until_run", nullable=True),  # the first run in which it was no longer there
)

STATES = Table(
    "states",
    METADATA,
    Column("node_id", ForeignKey("nodes.id"), primary_key=True),
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("state", String(16), nullable=False),
    sqlite_with_rowid=False,
)

TEXTS = _numbered_table("texts", Column("text", String(256), nullable=False, unique=True))

EPISODES = _numbered_table(
    "episodes",
    Column("check_id", String(128), nullable=False),
    Column("about", String(600), nullable=False),
    Column("fleet_id", Integer, nullable=False),  # 0: of nodes, whatever fleet they are in
    Column("outcome", String(16), nullable=False),
    _text_column(),
    _run_column("first_run"),
    _run_column("last_run"),
    Column("times", Integer, nullable=False),
    _run_column("closed_run", nullable=True),
    Index("episodes_by_close", "closed_run"),
    Index("episodes_by_last", "last_run"),
)

VERDICTS = _numbered_table(
    "verdicts",
    Column("run_id", ForeignKey("runs.id"), nullable=False, index=True),
    Column("episode_id", ForeignKey("episodes.id"), nullable=False, index=True),
    Column("outcome", String(16), nullable=False),
    _text_column(),
)

BLAMED = Table(
    "blamed",
    METADATA,
    Column("node_id", ForeignKey("nodes.id"), primary_key=True),
    Column("verdict_id", ForeignKey("verdicts.id"), primary_key=True),
    sqlite_with_rowid=False,
)

LAYOUTS = _numbered_table(
    "layouts",
    Column("measure", String(64), nullable=False),
    Column("under", String(256), nullable=False),
    Column("units", Text, nullable=False),
    UniqueConstraint("measure", "under", "units"),
)

MEASURES = _numbered_table(
    "measures",
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("node_id", ForeignKey("nodes.id"), nullable=False),
    Column("layout_id", ForeignKey("layouts.id"), nullable=False),
    Column("numbers", Text, nullable=False),
    # A node's numbers are adjacent, so that a night touches one page per node.
    Index("measures_by_node", "node_id", "run_id"),
)


SCHEMA = 5
_OTHER_FOLDER = "give another folder: --preflight-history=DIR"


def has_tables(connection: Connection, place: Place) -> bool:
    """Whether the database has the history's tables; HistoryError if it has others."""
    tables = inspect(connection).get_table_names()
    if place.file is not None and _schema_computes(connection):
        why = "it has views, triggers or expressions, and a history has none"
        raise unusable(place, why, _OTHER_FOLDER)
    if META.name not in tables:
        if tables and place.file is not None:
            raise unusable(place, "another program made it", _OTHER_FOLDER)
        return False
    version = connection.execute(select(META.c.schema_version)).scalar_one()
    if version != SCHEMA:
        why = f"it is of schema {version}, this preflight knows {SCHEMA}"
        raise unusable(place, why, f"use the one that wrote it, or {_OTHER_FOLDER}")
    return True


def refuse_long_texts(connection: Connection, place: Place) -> None:
    """Refuse texts that no run wrote, before SQLite sorts them or a server sends some at once."""
    is_file = connection.dialect.name == "sqlite"
    for table in METADATA.sorted_tables:
        long = [
            _bytes(column, is_file=is_file) > 4 * (column.type.length or MOST_FIELD // 4)
            for column in table.columns
            if isinstance(column.type, String) and (column.type.length or not is_file)
        ]
        if long and connection.execute(select(1).select_from(table).where(or_(*long))).first():
            raise HistoryError(
                explain_refusal(place, f"the table {table.name} holds too much text")
            )


def _bytes(column: Column[Any], *, is_file: bool) -> ColumnElement[int]:
    """The bytes of a text; SQLite's length() ends at a NUL."""
    return func.length(cast(column, LargeBinary)) if is_file else func.octet_length(column)


_EXPRESSION = re.compile(r"(?i)\b(?:AS|CHECK|VIRTUAL|WHERE)\b|\bDEFAULT\s*\(|[^\w\s\"',()]")
"""A generated column, a condition, a module, a computed default, or any operator."""


def _schema_computes(connection: Connection) -> bool:
    """Whether the schema in the file makes SQLite compute: one step of it may take any time."""
    rows = connection.exec_driver_sql("SELECT type, coalesce(sql, '') FROM sqlite_master")
    return any(
        kind not in ("table", "index")
        or _EXPRESSION.search(str(sql))
        or (kind == "index" and str(sql).count("(") > 1)
        for kind, sql in rows
    )


def prepare(connection: Connection, place: Place) -> None:
    """Create the tables if there are none, and take the writer's lock."""
    if not has_tables(connection, place):
        METADATA.create_all(connection)
        connection.execute(insert(META).values(id=1, schema_version=SCHEMA, writes=0))
    refuse_long_texts(connection, place)
    connection.execute(update(META).where(META.c.id == 1).values(writes=META.c.writes + 1))


_VALUES_PER_QUERY = 500
"""Values in one query; SQLite's oldest limit is 999."""


class Rows:
    """New rows of one table: each gets its number at once, and all are written together."""

    def __init__(self, connection: Connection, table: Table) -> None:
        self._connection = connection
        self._table = table
        highest = connection.execute(select(func.max(table.c.id))).scalar_one()
        self._next = (highest or 0) + 1
        self._waiting: list[dict[str, Any]] = []

    def add(self, **values: object) -> int:
        """Add a row and return its number."""
        number = self._next
        self._next += 1
        self._waiting.append({"id": number, **values})
        return number

    def write(self) -> None:
        """Write the added rows."""
        if self._waiting:
            self._connection.execute(insert(self._table), self._waiting)
            self._waiting = []


def chunks(values: Iterable[Any]) -> Iterator[list[Any]]:
    """Cut a long list into pieces that fit one query."""
    sequence = list(values)
    for start in range(0, len(sequence), _VALUES_PER_QUERY):
        yield sequence[start : start + _VALUES_PER_QUERY]


PATIENCE_S = 10.0
"""Wait for another run that writes; a night of 1,000 nodes takes about one second."""

MOST_STEPS, _TICK = 1 << 30, 1 << 14
"""Of SQLite's machine in one transaction, some 20 s: another user's file may lack our indexes."""

MOST_TEXT, _TEXT_PER_BYTE, _COLUMN = 32 << 20, 8, 8
"""Bytes that one transaction may read, and those more per byte of the history: in what another user
wrote, many rows may share one long text. A column counts as a few bytes, whatever it holds."""

MOST_FIELD, _SERVER_BATCH = 16 << 20, 32
"""Bytes of one text in a server, and the rows that it sends before they are counted."""

STATEMENT_S = 60
"""How long a server may work at one statement, or wait for another run's lock."""

_SERVER = "postgresql"
_WAL_FILES = ("-wal", "-shm")


@contextmanager
def transaction(place: Place, *, writes: bool) -> Iterator[Connection]:
    """Run one transaction: all or nothing. Any database error becomes a HistoryError.

    A writer holds the lock from the start, so that what it read stays true until it is done.
    """
    refuse_others_files(place)
    engine = _engine(place, writes=writes)
    try:
        with engine.connect() as connection, connection.begin():
            _count_rows(connection, place)
            yield connection
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise HistoryError(
            explain_refusal(place, str(getattr(error, "orig", None) or error))
        ) from error
    finally:
        engine.dispose()


def _engine(place: Place, *, writes: bool) -> Engine:
    if place.file is None:
        try:
            engine = create_engine(place.url, poolclass=NullPool)
            snapshot = not writes and place.url.startswith(_SERVER)
            options = {"isolation_level": "REPEATABLE READ"} if snapshot else {}
            return engine.execution_options(**options)
        except (ImportError, NoSuchModuleError) as error:
            driver = "the database's driver beside preflight (psycopg for postgresql+psycopg://)"
            raise unusable(place, str(error), f"install {driver}") from error
        except ArgumentError as error:
            raise HistoryError(explain_refusal(place, str(error))) from error
    engine = create_engine(
        "sqlite://", creator=lambda: _connect(place, writes=writes), poolclass=NullPool
    )
    begin = "BEGIN IMMEDIATE" if writes else "BEGIN"

    @event.listens_for(engine, "begin")
    def _(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _connect(place: Place, *, writes: bool) -> sqlite3.Connection:
    """Connect without Python's implicit transactions."""
    connection = _open_file(place, "mode=rw" if writes else "mode=ro")
    if writes:
        connection.execute("PRAGMA synchronous = NORMAL")
        # A night touches a page per node and index: the cache reads each only once.
        connection.execute("PRAGMA cache_size = -65536")
        _write_ahead(connection)
    elif not _can_read(connection):
        connection.close()
        # A file without a writer in a read-only folder: SQLite cannot create the log's index.
        connection = _open_file(place, "mode=ro&immutable=1" if _has_no_log(place) else "mode=ro")
    return connection


def _open_file(place: Place, query: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(place.file))}?{query}",
        uri=True,
        timeout=PATIENCE_S,
        isolation_level=None,
        check_same_thread=False,
    )
    ticks = itertools.count(1)
    connection.set_progress_handler(lambda: next(ticks) * _TICK > MOST_STEPS, _TICK)
    connection.execute("PRAGMA trusted_schema = OFF")  # the file's own schema may call no function
    return connection


def _count_rows(connection: Connection, place: Place) -> None:
    """End the transaction when its rows hold too much text, or a server works for too long."""
    is_file = connection.dialect.name == "sqlite"
    if not is_file:
        connection.execute(text(f"SET LOCAL statement_timeout = '{STATEMENT_S}s'"))
    allowance = MOST_TEXT + _TEXT_PER_BYTE * _size(connection, place)
    batch = 1 if is_file else _SERVER_BATCH

    def count(rows: list[_Row]) -> list[_Row]:
        nonlocal allowance
        for field in itertools.chain.from_iterable(rows):
            allowance -= len(field) if isinstance(field, str | bytes) else _COLUMN
        if allowance < 0:
            raise HistoryError(explain_refusal(place, "its rows hold too much text"))
        return rows

    @event.listens_for(connection, "before_execute", retval=True)
    def _(*values: Any) -> tuple[Any, ...]:
        _, statement, many, params, _ = values
        if isinstance(statement, Select):
            statement = statement.execution_options(stream_results=True, max_row_buffer=batch)
        return statement, many, params

    @event.listens_for(connection, "after_execute")
    def _(*values: Any) -> None:
        result = values[-1]
        if result.returns_rows:
            result.cursor = _CountedCursor(result.cursor, count, batch)


class _CountedCursor:
    """A driver's cursor whose rows are counted as they come."""

    def __init__(self, cursor: Any, count: Callable[[list[_Row]], list[_Row]], batch: int) -> None:
        self._cursor = cursor
        self._count = count
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def fetchone(self) -> _Row | None:
        row = self._cursor.fetchone()
        return row if row is None else self._count([row])[0]

    def fetchmany(self, size: int) -> list[_Row]:
        return self._count(self._cursor.fetchmany(min(size, self._batch)))

    def fetchall(self) -> list[_Row]:
        return [row for rows in iter(lambda: self.fetchmany(self._batch), []) for row in rows]


def _size(connection: Connection, place: Place) -> int:
    """Bytes of the history on its disk, with what a file's log holds."""
    if place.file is not None:
        files = (Path(f"{place.file}{end}") for end in ("", *_WAL_FILES))
        return sum(file.stat().st_size for file in files if file.exists())
    if not place.url.startswith(_SERVER):
        return 0  # the empty history in memory
    sizes = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE pg_table_is_visible(oid)"
    query = text(f"{sizes} AND relname IN :names").bindparams(bindparam("names", expanding=True))
    return int(connection.execute(query, {"names": list(METADATA.tables)}).scalar_one() or 0)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Let readers read during a write, if the file system allows it."""
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise


def _can_read(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    except sqlite3.OperationalError as error:
        return not any(word in str(error) for word in ("unable to open", "readonly"))
    return True


def _has_no_log(place: Place) -> bool:
    """Whether everything written is in the file itself."""
    file = place.file
    return file is not None and not any(os.access(f"{file}{end}", os.F_OK) for end in _WAL_FILES)
