"""The tables of a history (schema 3), in SQL that SQLite and PostgreSQL both speak.

Numbers of rows are chosen here and not by the database: whoever writes holds the one lock that
there is. What repeats (sentences, names of units) is kept once and referred to.
"""

from __future__ import annotations

from sqlalchemy import (
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
)

METADATA = MetaData()


def _id() -> Column[int]:
    return Column("id", Integer, primary_key=True, autoincrement=False)


def _run(name: str = "run_id", *, nullable: bool = False) -> Column[int]:
    return Column(name, ForeignKey("runs.id"), nullable=nullable)


def _text_id() -> Column[int]:
    return Column("text_id", ForeignKey("texts.id"), nullable=False)


META = Table(
    "preflight_history",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("schema_version", Integer, nullable=False),
    Column("writes", Integer, nullable=False),  # changed first by every writer: it is the lock
)

FLEETS = Table(
    "fleets",
    METADATA,
    _id(),
    Column("key", String(64), nullable=False, unique=True),
    Column("nodes", Text, nullable=False),
    Column("past", Text, nullable=False),
    Column("last_run", Integer, nullable=False),
)

RUNS = Table(
    "runs",
    METADATA,
    _id(),
    Column("nonce", String(64), nullable=False),
    Column("fleet_id", ForeignKey("fleets.id"), nullable=False, index=True),
    Column("started_s", Float, nullable=False, index=True),
    Column("seconds", Float, nullable=False),
    Column("tier", String(16), nullable=False),
    Column("preflight", String(32), nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("ready", Integer, nullable=False),
    Column("not_ready", Integer, nullable=False),
    Column("systemic", SmallInteger, nullable=False),
    Column("pairs", Integer),
    Column("pairs_run", Integer),
    Column("pairs_known", Integer),
    Column("leaf_pairs", Integer),
    Column("leaf_pairs_run", Integer),
    Column("leaf_pairs_known", Integer),
    # Of which sweep it is a wave: "" for a run by itself.
    Column("sweep", String(64), nullable=False, server_default=""),
)

NODES = Table(
    "nodes",
    METADATA,
    _id(),
    Column("name", String(255), nullable=False, index=True),
    Column("serial", String(128), unique=True),
    Column("first_run", Integer, nullable=False),
    Column("last_run", Integer, nullable=False),
)

GPUS = Table(
    "gpus",
    METADATA,
    _id(),
    Column("uuid", String(128), nullable=False, unique=True),
    Column("model", String(128), nullable=False),
)

PLACES = Table(
    "places",
    METADATA,
    _id(),
    Column("gpu_id", ForeignKey("gpus.id"), nullable=False, index=True),
    Column("node_id", ForeignKey("nodes.id"), nullable=False, index=True),
    Column("slot", Integer, nullable=False),
    _run("since_run"),
    _run("until_run", nullable=True),  # the first run in which it was no longer there
)

STATES = Table(
    "states",
    METADATA,
    Column("node_id", ForeignKey("nodes.id"), primary_key=True),
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("state", String(8), nullable=False),
    sqlite_with_rowid=False,
)

TEXTS = Table("texts", METADATA, _id(), Column("text", String(256), nullable=False, unique=True))

EPISODES = Table(
    "episodes",
    METADATA,
    _id(),
    Column("check_id", String(128), nullable=False),
    Column("about", String(600), nullable=False),
    Column("fleet_id", Integer, nullable=False),  # 0: of nodes, whatever fleet they are in
    Column("outcome", String(16), nullable=False),
    _text_id(),
    _run("first_run"),
    _run("last_run"),
    Column("times", Integer, nullable=False),
    _run("closed_run", nullable=True),
    Index("episodes_by_close", "closed_run"),
    Index("episodes_by_last", "last_run"),
)

VERDICTS = Table(
    "verdicts",
    METADATA,
    _id(),
    Column("run_id", ForeignKey("runs.id"), nullable=False, index=True),
    Column("episode_id", ForeignKey("episodes.id"), nullable=False, index=True),
    Column("outcome", String(16), nullable=False),
    _text_id(),
    Column("verdicts", Integer, nullable=False),
)

BLAMED = Table(
    "blamed",
    METADATA,
    Column("node_id", ForeignKey("nodes.id"), primary_key=True),
    Column("verdict_id", ForeignKey("verdicts.id"), primary_key=True),
    sqlite_with_rowid=False,
)

COUNTS = Table(
    "counts",
    METADATA,
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("check_id", String(128), primary_key=True),
    Column("outcome", String(16), primary_key=True),
    Column("verdicts", Integer, nullable=False),
    sqlite_with_rowid=False,
)

LAYOUTS = Table(
    "layouts",
    METADATA,
    _id(),
    Column("measure", String(64), nullable=False),
    Column("under", String(256), nullable=False),
    Column("units", Text, nullable=False),
    UniqueConstraint("measure", "under", "units"),
)

MEASURES = Table(
    "measures",
    METADATA,
    _id(),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("node_id", ForeignKey("nodes.id"), nullable=False),
    Column("layout_id", ForeignKey("layouts.id"), nullable=False),
    Column("numbers", Text, nullable=False),
    # A node's numbers lie side by side, so that a night touches one page of it per node.
    Index("measures_by_node", "node_id", "run_id"),
)
