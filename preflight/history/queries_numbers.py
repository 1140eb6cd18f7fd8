"""Numbers over the nights: of a node's units, of a GPU wherever it sat, and for the judges."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec
from sqlalchemy import and_, select

from preflight.history.tables import (
    BLAMED,
    EPISODES,
    GPUS,
    LAYOUTS,
    MEASURES,
    PLACES,
    RUNS,
    VERDICTS,
)
from preflight.history.told import Point, Trend
from preflight.history.trouble import HistoryError
from preflight.history.units import OF_DEVICES, of_gpu, of_slot, unit_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import ColumnElement, Connection, Select

    from preflight.history.queries_nodes import Known

_Key = tuple[str, str, str]
"""(measure, under, unit)."""

_Found = dict[_Key, list[Point]]
_T = TypeVar("_T")


def trends(
    connection: Connection, node: int, since_s: float, *, measure: str | None = None
) -> tuple[Trend, ...]:
    """Every series of a node in the window."""
    found = _points(
        connection,
        _any,
        MEASURES.c.node_id == node,
        RUNS.c.started_s >= since_s,
        measure=measure,
    )
    return _as_trends(found)


def trends_of_gpu(connection: Connection, gpu: int, since_s: float) -> tuple[Trend, ...]:
    """Every series of a GPU in the window, in whatever slot it was."""
    found: _Found = {}
    for place in connection.execute(select(PLACES).where(PLACES.c.gpu_id == gpu)):
        sat = _points(
            connection,
            partial(_wherever, place.slot),
            *_while_there(place.node_id, place.since_run, place.until_run),
            RUNS.c.started_s >= since_s,
        )
        for key, points in sat.items():
            found.setdefault(key, []).extend(points)
    return _as_trends(found)


def series(
    connection: Connection, nodes: Mapping[str, Known], *, tier: str, since_s: float
) -> dict[str, tuple[float, ...]]:
    """What the devices of these nodes reached in good nights of a tier, by `unit_key`."""
    told: dict[str, tuple[float, ...]] = {}

    def good(node: int) -> tuple[ColumnElement[bool], ...]:
        return (
            RUNS.c.started_s >= since_s,
            RUNS.c.tier == tier,
            RUNS.c.id.not_in(_condemned(node)),
        )

    def keep(owner: str, found: _Found) -> None:
        for (measure, under, unit), points in found.items():
            key = unit_key(owner, measure, unit, under)
            values = (one.value for one in points if one.value > 0)
            told[key] = (*told.get(key, ()), *values)

    for name, known in nodes.items():
        own = MEASURES.c.node_id == known.id
        host = _points(connection, _of_host, own, *good(known.id))
        keep(name, host)
        here = and_(PLACES.c.node_id == known.id, PLACES.c.until_run.is_(None))
        for gpu in connection.execute(select(PLACES, GPUS.c.uuid).join(GPUS).where(here)):
            for place in connection.execute(select(PLACES).where(PLACES.c.gpu_id == gpu.gpu_id)):
                rename = _here if place.id == gpu.id else _taken_along
                sat = _points(
                    connection,
                    partial(rename, place.slot),
                    *_while_there(place.node_id, place.since_run, place.until_run),
                    *good(place.node_id),
                )
                keep(gpu.uuid, sat)
    return told


def _points(
    connection: Connection,
    rename: Callable[[str, str], str | None],
    *wanted: ColumnElement[bool],
    measure: str | None = None,
) -> _Found:
    """Read numbers in time's order. `rename`: what to call a measure's unit; None: not wanted."""
    query = select(LAYOUTS)
    if measure is not None:
        query = query.where(LAYOUTS.c.measure == measure)
    columns: dict[int, list[_Key | None]] = {}
    for row in connection.execute(query):
        names = (rename(row.measure, unit) for unit in _decoded(row.units, tuple[str, ...]))
        keys = [None if one is None else (row.measure, row.under, one) for one in names]
        if any(key is not None for key in keys):
            columns[row.id] = keys
    rows = connection.execute(
        select(RUNS.c.started_s, MEASURES.c.layout_id, MEASURES.c.numbers)
        .select_from(MEASURES.join(RUNS))
        .where(*wanted)
        .order_by(RUNS.c.started_s, RUNS.c.id)
    )
    found: _Found = {}
    for row in rows:
        if row.layout_id not in columns:
            continue
        values = _decoded(row.numbers, tuple[float | None, ...])
        for key, value in zip(columns[row.layout_id], values, strict=False):
            if key is not None and value is not None:
                found.setdefault(key, []).append(Point(row.started_s, value))
    return found


def _decoded(text: str, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        raise HistoryError(
            f"the history's numbers are damaged ({error}); move it away to begin anew, or give "
            "another folder: --preflight-history=DIR"
        ) from error


def _condemned(node: int) -> Select[tuple[int]]:
    """The runs in which a burn-in check condemned a node."""
    return (
        select(VERDICTS.c.run_id)
        .select_from(BLAMED.join(VERDICTS).join(EPISODES, VERDICTS.c.episode_id == EPISODES.c.id))
        .where(
            BLAMED.c.node_id == node,
            VERDICTS.c.outcome.in_(("fail", "flaky")),
            EPISODES.c.check_id.startswith("burn."),
        )
    )


def _while_there(node: int, since: int, until: int | None) -> tuple[ColumnElement[bool], ...]:
    own = (MEASURES.c.node_id == node, MEASURES.c.run_id >= since)
    return own if until is None else (*own, MEASURES.c.run_id < until)


def _any(_: str, unit: str) -> str | None:
    return unit


def _of_host(_: str, unit: str) -> str | None:
    return None if of_gpu(unit) else unit


def _wherever(slot: int, _: str, unit: str) -> str | None:
    """Of a GPU in a slot, whatever it was called for that."""
    rest = of_slot(unit, slot)
    return None if rest is None else f"GPU {rest}".rstrip()


def _here(slot: int, _: str, unit: str) -> str | None:
    return of_slot(unit, slot)


def _taken_along(slot: int, measure: str, unit: str) -> str | None:
    return of_slot(unit, slot) if measure in OF_DEVICES else None


def _as_trends(found: _Found) -> tuple[Trend, ...]:
    return tuple(
        Trend(
            measure=measure,
            unit=unit,
            under=under,
            points=tuple(sorted(points, key=lambda one: one.started_s)),
        )
        for (measure, under, unit), points in sorted(found.items(), key=_in_order)
    )


def _in_order(one: tuple[_Key, list[Point]]) -> tuple[object, ...]:
    from preflight.fleet.nodeset import natural

    measure, under, unit = one[0]
    return measure, under, natural(unit)
