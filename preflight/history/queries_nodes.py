"""Which nodes were not ready how often: repeat offenders stand out from one bad night."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import case, func, select

from preflight.history.ids import in_pieces
from preflight.history.night import BAD
from preflight.history.tables import BLAMED, EPISODES, NODES, RUNS, STATES, VERDICTS
from preflight.history.told import Standing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

CONDEMNING = ("fail", "flaky", "unknown")
MOST_CHECKS = 4


class Known(NamedTuple):
    """A machine as the history numbers it."""

    id: int
    name: str
    serial: str
    first_run: int
    last_run: int


def who(connection: Connection, names: Sequence[str]) -> dict[str, Known]:
    """The machines that bore these names last; a name that no run had is left out."""
    found: dict[str, Known] = {}
    for piece in in_pieces(dict.fromkeys(names)):
        query = select(NODES).where(NODES.c.name.in_(piece)).order_by(NODES.c.last_run)
        for row in connection.execute(query):
            found[row.name] = Known(row.id, row.name, row.serial or "", row.first_run, row.last_run)
    return found


def standings(
    connection: Connection,
    since_s: float,
    *,
    most: int | None = None,
    nodes: Iterable[int] | None = None,
) -> tuple[Standing, ...]:
    """How often nodes were not ready; the worst `most` of all, or these nodes.

    A run, or a sweep, in which a quarter of the fleet was not ready counts for nobody: that was
    one cause.
    """
    bad = func.sum(case((STATES.c.state.in_(BAD), 1), else_=0))
    query = (
        select(
            NODES.c.id,
            NODES.c.name,
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
    if nodes is not None:
        wanted = list(nodes)
        query = query.where(NODES.c.id.in_(wanted))
    else:
        query = query.having(bad > 0).order_by(bad.desc(), NODES.c.name).limit(most)
    rows = connection.execute(query).all()
    checks = _checks(connection, since_s, [row.id for row in rows])
    told = [
        Standing(
            node=row.name,
            serial=row.serial or "",
            judged=row.judged,
            bad=row.bad,
            flaky=row.flaky,
            last_bad_s=row.last_bad_s,
            checks=checks.get(row.id, ()),
        )
        for row in rows
    ]
    if nodes is not None and not told:
        query_all = select(NODES).where(NODES.c.id.in_(wanted))
        told = [
            Standing(node=row.name, serial=row.serial or "", judged=0, bad=0, flaky=0)
            for row in connection.execute(query_all)
        ]
    return tuple(told)


def _checks(
    connection: Connection, since_s: float, nodes: Sequence[int]
) -> dict[int, tuple[tuple[str, int], ...]]:
    """What stood against them, in how many runs each."""
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
            VERDICTS.c.outcome.in_(CONDEMNING),
            RUNS.c.started_s >= since_s,
            RUNS.c.systemic == 0,
        )
        .group_by(BLAMED.c.node_id, EPISODES.c.check_id)
        .order_by(runs.desc(), EPISODES.c.check_id)
    )
    found: dict[int, list[tuple[str, int]]] = {}
    for row in connection.execute(query):
        found.setdefault(row.node_id, []).append((row.check_id, row.runs))
    return {node: tuple(checks[:MOST_CHECKS]) for node, checks in found.items()}
