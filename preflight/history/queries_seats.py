"""Where GPUs sat: a GPU that moved keeps its record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from preflight.history.tables import GPUS, NODES, PLACES, RUNS
from preflight.history.told import Seat

if TYPE_CHECKING:
    from sqlalchemy import Connection


def seats(
    connection: Connection, *, node: int | None = None, gpu: int | None = None
) -> tuple[Seat, ...]:
    """Of a node: the GPUs that it has, then those that it had. Of a GPU: where it sat, in turn."""
    since, until = RUNS.alias(), RUNS.alias()
    query = (
        select(
            PLACES,
            GPUS.c.uuid,
            GPUS.c.model,
            NODES.c.name,
            since.c.started_s.label("since_s"),
            until.c.started_s.label("until_s"),
        )
        .select_from(
            PLACES.join(GPUS)
            .join(NODES, PLACES.c.node_id == NODES.c.id)
            .join(since, PLACES.c.since_run == since.c.id)
            .outerjoin(until, PLACES.c.until_run == until.c.id)
        )
        .order_by(PLACES.c.id)
    )
    own = PLACES.c.node_id == node if gpu is None else PLACES.c.gpu_id == gpu
    rows = connection.execute(query.where(own)).all()
    found = [
        Seat(
            uuid=row.uuid,
            model=row.model,
            node=row.name,
            slot=row.slot,
            since_s=row.since_s,
            until_s=row.until_s,
        )
        for row in rows
    ]
    if gpu is None:
        found.sort(key=lambda one: (one.until_s is not None, one.slot))
    return tuple(found)
