"""Findings as episodes: of a window of runs, of a node, or of what a GPU was part of."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import and_, exists, func, or_, select

from preflight.history.ids import in_pieces
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
)
from preflight.history.told import Episode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import ColumnElement, Connection

MOST = 2000
"""Episodes that are told at once; a page that lists more is not read."""


class Window(NamedTuple):
    """The episodes that some runs are about."""

    new: tuple[Episode, ...]
    still: tuple[Episode, ...]
    recovered: tuple[Episode, ...]
    unseen: tuple[Episode, ...]


def window(connection: Connection, first: int, last: int) -> Window:
    """Sort the episodes of the runs `first` to `last` by what these runs changed."""
    began, ended = EPISODES.c.first_run, EPISODES.c.closed_run
    inside = and_(VERDICTS.c.episode_id == EPISODES.c.id, VERDICTS.c.run_id.between(first, last))
    seen = exists(select(VERDICTS.c.id).where(inside))
    open_after = or_(ended.is_(None), ended > last)
    took_part = exists(
        select(BLAMED.c.node_id)
        .select_from(BLAMED.join(VERDICTS).join(STATES, STATES.c.node_id == BLAMED.c.node_id))
        .where(VERDICTS.c.episode_id == EPISODES.c.id, STATES.c.run_id.between(first, last))
    )
    tell = _Telling(connection, last)
    return Window(
        new=tell.those(seen, open_after, began >= first),
        still=tell.those(seen, open_after, began < first),
        recovered=tell.those(ended.between(first, last)),
        unseen=tell.those(began < first, open_after, ~seen, took_part),
    )


def run_before(connection: Connection, first: int, last: int) -> int | None:
    """The last run before `first` that looked at any node of the runs `first` to `last`."""
    own = STATES.alias()
    nodes = select(own.c.node_id).where(own.c.run_id.between(first, last))
    query = select(func.max(STATES.c.run_id)).where(
        STATES.c.node_id.in_(nodes), STATES.c.run_id < first
    )
    return connection.execute(query).scalar_one_or_none()


def episodes_of(
    connection: Connection, node: int | None = None, gpu: int | None = None
) -> tuple[Episode, ...]:
    """Every episode that blames a node, or that names a GPU while it sat in the blamed node."""
    tell = _Telling(connection, None)
    blames = select(BLAMED.c.node_id).select_from(BLAMED.join(VERDICTS))
    if node is not None:
        of_node = blames.where(VERDICTS.c.episode_id == EPISODES.c.id, BLAMED.c.node_id == node)
        return tell.those(exists(of_node))
    found: dict[int, None] = {}
    query = select(PLACES, GPUS.c.uuid).join(GPUS).where(PLACES.c.gpu_id == gpu)
    for place in connection.execute(query):
        while_there = [BLAMED.c.node_id == place.node_id, VERDICTS.c.run_id >= place.since_run]
        if place.until_run is not None:
            while_there.append(VERDICTS.c.run_id < place.until_run)
        rows = connection.execute(
            select(EPISODES.c.id, TEXTS.c.text)
            .distinct()
            .select_from(
                BLAMED.join(VERDICTS)
                .join(EPISODES, VERDICTS.c.episode_id == EPISODES.c.id)
                .join(TEXTS, VERDICTS.c.text_id == TEXTS.c.id)
            )
            .where(*while_there)
        )
        for row in rows:
            if _names(row.text, place.slot, place.uuid):
                found[row.id] = None
    return tuple(one for piece in in_pieces(found) for one in tell.those(EPISODES.c.id.in_(piece)))


def _names(sentence: str, slot: int, uuid: str) -> bool:
    """Whether a sentence is about that GPU of the node."""
    words = sentence.replace(",", " ").replace(":", " ").split()
    return uuid in sentence or ("GPU", str(slot)) in pairwise(words)


class _Telling:
    """Episodes made of rows; as of the run `last`, or as of now."""

    def __init__(self, connection: Connection, last: int | None) -> None:
        self._connection = connection
        self._last = last

    def those(self, *wanted: ColumnElement[bool]) -> tuple[Episode, ...]:
        first, final, end = RUNS.alias(), RUNS.alias(), RUNS.alias()
        query = (
            select(
                EPISODES,
                TEXTS.c.text,
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
            .where(*wanted)
            .order_by(EPISODES.c.closed_run.desc().nulls_first(), EPISODES.c.last_run.desc(),
                      EPISODES.c.id)
            .limit(MOST)
        )  # fmt: skip
        rows = self._connection.execute(query).all()
        blamed = self._blamed([row.id for row in rows])
        return tuple(
            Episode(
                check=row.check_id,
                about=row.about,
                outcome=row.outcome,
                sentence=row.text,
                nodes=blamed.get(row.id, ()),
                first_s=row.first_s,
                last_s=row.last_s,
                nights=row.times,
                ended_s=row.ended_s,
            )
            for row in rows
        )

    def _blamed(self, episodes: Iterable[int]) -> dict[int, tuple[str, ...]]:
        """Whom they condemned when they were last seen."""
        found: dict[int, tuple[str, ...]] = {}
        for piece in in_pieces(episodes):
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
            for row in self._connection.execute(query):
                found[row.episode_id] = (*found.get(row.episode_id, ()), row.name)
        return found
