"""The questions that are asked of a history; each is a few queries by an index."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec
from sqlalchemy import and_, func, select

from preflight.history.answers import Changes, GpuPast, NodePast, Point, Ran, Seat, Trend
from preflight.history.findings import (
    as_struct,
    episodes_of,
    run_before,
    standings,
    while_there,
    who,
    window,
)
from preflight.history.run_record import (
    OF_DEVICES,
    Covered,
    HistoryError,
    Past,
    fleet_key,
    of_gpu,
    of_slot,
    unit_key,
)
from preflight.history.tables import (
    BLAMED,
    EPISODES,
    FLEETS,
    GPUS,
    LAYOUTS,
    MEASURES,
    NODES,
    PLACES,
    RUNS,
    VERDICTS,
)
from preflight.history.writing import read_past

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Row
    from sqlalchemy import Select as SqlalchemySelect
    from sqlalchemy.sql import Select

    from preflight.history.answers import Standing
    from preflight.history.findings import Known


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
        lambda _, unit: unit,
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
            *while_there(place, MEASURES.c.node_id, MEASURES.c.run_id),
            RUNS.c.started_s >= since_s,
        )
        for key, points in sat.items():
            found.setdefault(key, []).extend(points)
    return _as_trends(found)


def series(
    connection: Connection, nodes: Mapping[str, Known], *, tier: str, since_s: float
) -> dict[str, tuple[float, ...]]:
    """What the devices of these nodes reached in good nights of a tier, by `unit_key`."""
    told: dict[str, list[float]] = {}

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
            told.setdefault(key, []).extend(values)

    for name, known in nodes.items():
        own = MEASURES.c.node_id == known.id
        host = _points(
            connection, lambda _, unit: None if of_gpu(unit) else unit, own, *good(known.id)
        )
        keep(name, host)
        here = and_(PLACES.c.node_id == known.id, PLACES.c.until_run.is_(None))
        for gpu in connection.execute(select(PLACES, GPUS.c.uuid).join(GPUS).where(here)):
            for place in connection.execute(select(PLACES).where(PLACES.c.gpu_id == gpu.gpu_id)):
                sat = _points(
                    connection,
                    partial(_in_slot, place.slot, place.id == gpu.id),
                    *while_there(place, MEASURES.c.node_id, MEASURES.c.run_id),
                    *good(place.node_id),
                )
                keep(gpu.uuid, sat)
    return {key: tuple(values) for key, values in told.items()}


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


def _condemned(node: int) -> SqlalchemySelect[tuple[int]]:
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


def _wherever(slot: int, _: str, unit: str) -> str | None:
    """Of a GPU in a slot, whatever it was called for that."""
    rest = of_slot(unit, slot)
    return None if rest is None else f"GPU {rest}".rstrip()


def _in_slot(slot: int, here: bool, measure: str, unit: str) -> str | None:  # noqa: FBT001  partial
    """Of a GPU in a slot; of one that it has left, only what it took along."""
    return of_slot(unit, slot) if here or measure in OF_DEVICES else None


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
            NODES.c.name.label("node"),
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
    found = [as_struct(Seat, row) for row in connection.execute(query.where(own))]
    if gpu is None:
        found.sort(key=lambda one: (one.until_s is not None, one.slot))
    return tuple(found)


NIGHT_S = 86400.0
"""A window of N nights is so long before the latest run; nights without a run are not made up."""

NIGHTS = 30


class History:
    """One history as of one moment."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def past(self, nodes: Sequence[str], leaves: Mapping[str, str]) -> Past:
        """What planners want to know of this very fleet's pairs; empty if it was never swept."""
        own = FLEETS.c.key == fleet_key(nodes, leaves)
        found = self._connection.execute(select(FLEETS.c.past).where(own)).scalar_one_or_none()
        return read_past(found or "")

    def units(
        self, nodes: Sequence[str], tier: str, nights: int = NIGHTS
    ) -> dict[str, tuple[float, ...]]:
        """What the devices of these nodes reached in runs of that tier, by `units.unit_key`.

        Nights in which a burn-in check condemned the node are left out: they are not its usual.
        """
        known = who(self._connection, nodes)
        return series(self._connection, known, tier=tier, since_s=self._since(nights))

    def runs(self, most: int = NIGHTS) -> tuple[Ran, ...]:
        """The latest runs, the last one first."""
        return self._ran(_RUNS.order_by(RUNS.c.id.desc()).limit(most))

    def last_run(self, nodes: Sequence[str] = ()) -> Ran | None:
        """The last run of all, or of exactly these nodes (wherever their leaves are)."""
        query = _RUNS.order_by(RUNS.c.id.desc()).limit(1)
        if nodes:
            from preflight.fleet.nodeset import fold

            query = query.where(FLEETS.c.nodes == fold(sorted(nodes)))
        return next(iter(self._ran(query)), None)

    def run(self, nonce: str) -> Ran | None:
        """The run with that nonce, as report.json tells it; None if it is not remembered."""
        query = _RUNS.where(RUNS.c.nonce == nonce).order_by(RUNS.c.id.desc()).limit(1)
        return next(iter(self._ran(query)), None)

    def changes(self, last: Ran | None, since: Ran | None = None) -> Changes:
        """What the runs from `since` (default: `last` alone) to `last` changed; empty for None."""
        if last is None:
            return Changes(runs=(), before=None)
        first = since.id if since is not None else last.id
        told = self._ran(_RUNS.where(RUNS.c.id.between(first, last.id)).order_by(RUNS.c.id))
        before = run_before(self._connection, first, last.id)
        return Changes(
            runs=told,
            before=None if before is None else self._ran(_RUNS.where(RUNS.c.id == before))[0],
            **window(self._connection, first, last.id),
        )

    def night(self, last: Ran) -> tuple[Ran, ...]:
        """The runs of one night, the first one first: all waves of a sweep, else the run alone."""
        if not last.sweep:
            return (last,)
        return self._ran(_RUNS.where(RUNS.c.sweep == last.sweep).order_by(RUNS.c.id))

    def since(self, last: Ran) -> Ran:
        """The first run of the night that `last` ends."""
        return self.night(last)[0]

    def worst(self, nights: int = NIGHTS, most: int = 20) -> tuple[Standing, ...]:
        """The nodes that were not ready most often in the last `nights`, the worst first."""
        return standings(self._connection, self._since(nights), most=most)

    def names(self) -> tuple[str, ...]:
        """Every name that a node ever had."""
        query = select(NODES.c.name).distinct().order_by(NODES.c.name)
        return tuple(self._connection.execute(query).scalars())

    def first_run(self) -> Ran | None:
        """The first run that is remembered."""
        return next(iter(self._ran(_RUNS.order_by(RUNS.c.id).limit(1))), None)

    def measures(self, node: str) -> tuple[str, ...]:
        """What was ever measured of a node."""
        if not (known := who(self._connection, [node])):
            return ()
        query = (
            select(LAYOUTS.c.measure)
            .distinct()
            .select_from(MEASURES.join(LAYOUTS))
            .where(MEASURES.c.node_id == known[node].id)
            .order_by(LAYOUTS.c.measure)
        )
        return tuple(self._connection.execute(query).scalars())

    def trend(self, node: str, measure: str, nights: int = NIGHTS) -> tuple[Trend, ...]:
        """One measure of a node, per unit and per what was the same; the units in their order."""
        if not (known := who(self._connection, [node])):
            return ()
        return trends(self._connection, known[node].id, self._since(nights), measure=measure)

    def node(self, name: str, nights: int = NIGHTS) -> NodePast | None:
        """All that is known of the machine that bore this name last; None if no run had it."""
        if not (known := who(self._connection, [name])):
            return None
        own = known[name]
        since_s = self._since(nights)
        (standing,) = standings(self._connection, since_s, nodes=[own.id])
        query = select(NODES.c.serial).where(NODES.c.name == name, NODES.c.id != own.id)
        return NodePast(
            standing=standing,
            first_s=self._when(own.first_run),
            last_s=self._when(own.last_run),
            seats=seats(self._connection, node=own.id),
            episodes=episodes_of(self._connection, own.id),
            trends=trends(self._connection, own.id, since_s),
            namesakes=tuple(one or "" for one in self._connection.execute(query).scalars()),
        )

    def gpu(self, uuid: str, nights: int = NIGHTS) -> GpuPast | None:
        """All that is known of one GPU, wherever it sat; None if no run had it."""
        found = self._connection.execute(select(GPUS).where(GPUS.c.uuid == uuid)).one_or_none()
        if found is None:
            return None
        sat = seats(self._connection, gpu=found.id)
        return GpuPast(
            uuid=found.uuid,
            model=found.model,
            seats=sat,
            episodes=episodes_of(self._connection, gpu=found.id),
            trends=trends_of_gpu(self._connection, found.id, self._since(nights)),
        )

    def _since(self, nights: int) -> float:
        """When a window of so many nights begins: it ends with the latest run."""
        latest = self._connection.execute(select(func.max(RUNS.c.started_s))).scalar_one()
        return (latest or 0.0) - nights * NIGHT_S

    def _when(self, run: int) -> float:
        query = select(RUNS.c.started_s).where(RUNS.c.id == run)
        return float(self._connection.execute(query).scalar_one_or_none() or 0.0)

    def _ran(self, query: Select[tuple[object, ...]]) -> tuple[Ran, ...]:
        return tuple(_told(row) for row in self._connection.execute(query))


_RUNS = select(RUNS, RUNS.c.nonce.label("run"), FLEETS.c.nodes.label("fleet")).select_from(
    RUNS.join(FLEETS)
)


def _told(row: Row[tuple[object, ...]]) -> Ran:
    covered = None
    if row.pairs is not None:
        covered = Covered(**{name: getattr(row, name) or 0 for name in Covered.__struct_fields__})
    return as_struct(Ran, row, systemic=bool(row.systemic), covered=covered)
