"""Reads findings as episodes: those of some runs, of a node, or of a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, and_, case, exists, func, or_, select

from preflight.core.statistics import grouped
from preflight.history.run_record import BAD, Episode, NodeRecord
from preflight.history.tables import (
    BLAMED,
    EPISODES,
    GPUS,
    NODES,
    PLACES,
    RUNS,
    STATES,
    TEXTS,
    VERDICTS,
    chunks,
)

MOST_EPISODES = 2000
"""Episodes returned at once; a page with more is too long to read."""


_S = TypeVar("_S", bound=Struct)


def as_struct(kind: type[_S], row: Any, **more: object) -> _S:
    """Make a value from the columns named like its fields; `more` takes precedence."""
    columns = row._mapping  # noqa: SLF001  the public name of it in SQLAlchemy
    fields = {name: columns[name] for name in kind.__struct_fields__ if name in columns}
    return kind(**{**fields, **more})


def during_placement(
    place: Any, node: ColumnElement[int], run: ColumnElement[int]
) -> tuple[ColumnElement[bool], ...]:
    """Conditions: the node of a placement (a row of PLACES), and the runs with the GPU there."""
    conditions = (node == place.node_id, run >= place.since_run)
    return conditions if place.until_run is None else (*conditions, run < place.until_run)


def episode_changes(
    connection: Connection, first: int, last: int
) -> dict[str, tuple[Episode, ...]]:
    """The episodes of the runs `first` to `last`, by the fields of `Changes`."""
    began, ended = EPISODES.c.first_run, EPISODES.c.closed_run
    inside = and_(VERDICTS.c.episode_id == EPISODES.c.id, VERDICTS.c.run_id.between(first, last))
    has_verdict = exists(select(VERDICTS.c.id).where(inside))
    open_after = or_(ended.is_(None), ended > last)
    took_part = exists(
        select(BLAMED.c.node_id)
        .select_from(BLAMED.join(VERDICTS).join(STATES, STATES.c.node_id == BLAMED.c.node_id))
        .where(VERDICTS.c.episode_id == EPISODES.c.id, STATES.c.run_id.between(first, last))
    )
    return {
        "new": _episodes_where(connection, has_verdict, open_after, began >= first),
        "still": _episodes_where(connection, has_verdict, open_after, began < first),
        "recovered": _episodes_where(connection, ended.between(first, last)),
        "unseen": _episodes_where(connection, began < first, open_after, ~has_verdict, took_part),
    }


def run_before(connection: Connection, first: int, last: int) -> int | None:
    """The last run before `first` that checked any node of the runs `first` to `last`."""
    compared = STATES.alias()
    nodes = select(compared.c.node_id).where(compared.c.run_id.between(first, last))
    query = select(func.max(STATES.c.run_id)).where(
        STATES.c.node_id.in_(nodes), STATES.c.run_id < first
    )
    return connection.execute(query).scalar_one_or_none()


def episodes_of(
    connection: Connection, node: int | None = None, gpu: int | None = None
) -> tuple[Episode, ...]:
    """Every episode that blames a node, or that names a GPU while it was in the blamed node."""
    blames = select(BLAMED.c.node_id).select_from(BLAMED.join(VERDICTS))
    if node is not None:
        of_node = blames.where(VERDICTS.c.episode_id == EPISODES.c.id, BLAMED.c.node_id == node)
        return _episodes_where(connection, exists(of_node))
    ids: dict[int, None] = {}
    query = select(PLACES, GPUS.c.uuid).join(GPUS).where(PLACES.c.gpu_id == gpu)
    for place in connection.execute(query):
        rows = connection.execute(
            select(EPISODES.c.id, TEXTS.c.text)
            .distinct()
            .select_from(
                BLAMED.join(VERDICTS)
                .join(EPISODES, VERDICTS.c.episode_id == EPISODES.c.id)
                .join(TEXTS, VERDICTS.c.text_id == TEXTS.c.id)
            )
            .where(*during_placement(place, BLAMED.c.node_id, VERDICTS.c.run_id))
        )
        ids |= dict.fromkeys(row.id for row in rows if _names_gpu(row.text, place.slot, place.uuid))
    return tuple(
        episode
        for piece in chunks(ids)
        for episode in _episodes_where(connection, EPISODES.c.id.in_(piece))
    )


def _names_gpu(sentence: str, slot: int, uuid: str) -> bool:
    """Whether a sentence names that GPU of the node."""
    words = sentence.replace(",", " ").replace(":", " ").split()
    return uuid in sentence or ("GPU", str(slot)) in pairwise(words)


def _episodes_where(
    connection: Connection, *conditions: ColumnElement[bool]
) -> tuple[Episode, ...]:
    first, final, end = RUNS.alias(), RUNS.alias(), RUNS.alias()
    query = (
        select(
            EPISODES,
            EPISODES.c.check_id.label("check"),
            EPISODES.c.times.label("nights"),
            TEXTS.c.text.label("sentence"),
            first.c.started_s.label("first_s"),
            final.c.started_s.label("last_s"),
            end.c.started_s.label("ended_s"),
        )
        .select_from(
            EPISODES.join(TEXTS)
            .join(first, EPISODES.c.first_run == first.c.id)
            .join(final, EPISODES.c.last_run == final.c.id)
            .outerjoin(end, EPISODES.c.closed_run == end.c.id)
        )
        .where(*conditions)
        .order_by(EPISODES.c.closed_run.desc().nulls_first(), EPISODES.c.last_run.desc(),
                  EPISODES.c.id)
        .limit(MOST_EPISODES)
    )  # fmt: skip
    rows = connection.execute(query).all()
    blamed = _blamed_nodes(connection, [row.id for row in rows])
    return tuple(as_struct(Episode, row, nodes=tuple(blamed.get(row.id, ()))) for row in rows)


def _blamed_nodes(connection: Connection, episodes: Iterable[int]) -> dict[int, list[str]]:
    """The nodes that each episode blamed when it was last found."""
    by_episode: dict[int, list[str]] = {}
    for piece in chunks(episodes):
        latest = (
            select(func.max(VERDICTS.c.id))
            .where(VERDICTS.c.episode_id.in_(piece))
            .group_by(VERDICTS.c.episode_id)
        )
        query = (
            select(VERDICTS.c.episode_id, NODES.c.name)
            .select_from(VERDICTS.join(BLAMED).join(NODES, BLAMED.c.node_id == NODES.c.id))
            .where(VERDICTS.c.id.in_(latest))
            .order_by(NODES.c.id)
        )
        for row in connection.execute(query):
            by_episode.setdefault(row.episode_id, []).append(row.name)
    return by_episode


COUNTING_OUTCOMES = ("fail", "flaky", "unknown")
MOST_CHECKS = 4


def find_machines(connection: Connection, names: Sequence[str]) -> dict[str, Any]:
    """The rows of the machines that had these names last; unknown names are left out."""
    machines: dict[str, Any] = {}
    for piece in chunks(dict.fromkeys(names)):
        query = select(NODES).where(NODES.c.name.in_(piece)).order_by(NODES.c.last_run)
        machines |= {row.name: row for row in connection.execute(query)}
    return machines


def node_records(
    connection: Connection, since_s: float, *, most: int | None = None, node: int | None = None
) -> tuple[NodeRecord, ...]:
    """How often nodes were not ready; the worst `most` of all, or this node if any run judged it.

    A run, or a sweep, in which a quarter of the fleet was not ready counts against no node: it had
    one shared cause.
    """
    bad = func.sum(case((STATES.c.state.in_(BAD), 1), else_=0))
    query = (
        select(
            NODES.c.id,
            NODES.c.name.label("node"),
            NODES.c.serial,
            func.sum(case((STATES.c.state != "unjudged", 1), else_=0)).label("judged"),
            bad.label("bad"),
            func.sum(case((STATES.c.state == "flaky", 1), else_=0)).label("flaky"),
            func.max(case((STATES.c.state.in_(BAD), RUNS.c.started_s))).label("last_bad_s"),
        )
        .select_from(STATES.join(RUNS).join(NODES, STATES.c.node_id == NODES.c.id))
        .where(RUNS.c.started_s >= since_s, RUNS.c.systemic == 0)
        .group_by(NODES.c.id, NODES.c.name, NODES.c.serial)
    )
    if node is not None:
        query = query.where(NODES.c.id == node)
    else:
        query = query.having(bad > 0).order_by(bad.desc(), NODES.c.name).limit(most)
    rows = connection.execute(query).all()
    checks = _failed_checks(connection, since_s, [row.id for row in rows])
    return tuple(
        as_struct(NodeRecord, row, serial=row.serial or "", checks=checks.get(row.id, ()))
        for row in rows
    )


def _failed_checks(
    connection: Connection, since_s: float, nodes: Sequence[int]
) -> dict[int, tuple[tuple[str, int], ...]]:
    """The checks that counted against each node, and in how many runs."""
    runs = func.count(VERDICTS.c.run_id.distinct())
    query = (
        select(BLAMED.c.node_id, EPISODES.c.check_id, runs.label("runs"))
        .select_from(
            BLAMED.join(VERDICTS)
            .join(EPISODES, VERDICTS.c.episode_id == EPISODES.c.id)
            .join(RUNS, VERDICTS.c.run_id == RUNS.c.id)
        )
        .where(
            BLAMED.c.node_id.in_(nodes),
            VERDICTS.c.outcome.in_(COUNTING_OUTCOMES),
            RUNS.c.started_s >= since_s,
            RUNS.c.systemic == 0,
        )
        .group_by(BLAMED.c.node_id, EPISODES.c.check_id)
        .order_by(runs.desc(), EPISODES.c.check_id)
    )
    by_node = grouped((row.node_id, (row.check_id, row.runs)) for row in connection.execute(query))
    return {node: tuple(checks[:MOST_CHECKS]) for node, checks in by_node.items()}
