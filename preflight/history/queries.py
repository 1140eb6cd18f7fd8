"""The questions that a history answers; each takes a few indexed queries."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec
from sqlalchemy import and_, func, select

from preflight.history.answers import (
    Changes,
    GpuPast,
    GpuPlacement,
    NodePast,
    PastRun,
    Point,
    Trend,
)
from preflight.history.episodes import (
    as_struct,
    during_placement,
    episode_changes,
    episodes_of,
    find_machines,
    run_before,
    standings,
)
from preflight.history.run_record import (
    OF_DEVICES,
    HistoryError,
    PairCoverage,
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

    from preflight.history.answers import NodeRecord
    from preflight.history.episodes import KnownMachine


_Key = tuple[str, str, str]
"""(measure, under, unit)."""

_Series = dict[_Key, list[Point]]
_T = TypeVar("_T")


def trends(
    connection: Connection, node: int, since_s: float, *, measure: str | None = None
) -> tuple[Trend, ...]:
    """Every series of a node since a time."""
    found = _points(
        connection,
        lambda _, unit: unit,
        MEASURES.c.node_id == node,
        RUNS.c.started_s >= since_s,
        measure=measure,
    )
    return _as_trends(found)


def trends_of_gpu(connection: Connection, gpu: int, since_s: float) -> tuple[Trend, ...]:
    """Every series of a GPU since a time, in whatever slot it was."""
    found: _Series = {}
    for place in connection.execute(select(PLACES).where(PLACES.c.gpu_id == gpu)):
        points_there = _points(
            connection,
            partial(_name_in_any_slot, place.slot),
            *during_placement(place, MEASURES.c.node_id, MEASURES.c.run_id),
            RUNS.c.started_s >= since_s,
        )
        for key, points in points_there.items():
            found.setdefault(key, []).extend(points)
    return _as_trends(found)


def series(
    connection: Connection, nodes: Mapping[str, KnownMachine], *, tier: str, since_s: float
) -> dict[str, tuple[float, ...]]:
    """What the devices of these nodes reached in a tier's nights without burn-in failures."""
    values_by_key: dict[str, list[float]] = {}

    def good(node: int) -> tuple[ColumnElement[bool], ...]:
        return (
            RUNS.c.started_s >= since_s,
            RUNS.c.tier == tier,
            RUNS.c.id.not_in(_failed_burn_in_runs(node)),
        )

    def keep(owner: str, found: _Series) -> None:
        for (measure, under, unit), points in found.items():
            key = unit_key(owner, measure, unit, under)
            values = (one.value for one in points if one.value > 0)
            values_by_key.setdefault(key, []).extend(values)

    for name, known in nodes.items():
        own = MEASURES.c.node_id == known.id
        host_points = _points(
            connection, lambda _, unit: None if of_gpu(unit) else unit, own, *good(known.id)
        )
        keep(name, host_points)
        here = and_(PLACES.c.node_id == known.id, PLACES.c.until_run.is_(None))
        for gpu in connection.execute(select(PLACES, GPUS.c.uuid).join(GPUS).where(here)):
            for place in connection.execute(select(PLACES).where(PLACES.c.gpu_id == gpu.gpu_id)):
                points_there = _points(
                    connection,
                    partial(_name_in_slot, place.slot, place.id == gpu.id),
                    *during_placement(place, MEASURES.c.node_id, MEASURES.c.run_id),
                    *good(place.node_id),
                )
                keep(gpu.uuid, points_there)
    return {key: tuple(values) for key, values in values_by_key.items()}


def _points(
    connection: Connection,
    rename: Callable[[str, str], str | None],
    *wanted: ColumnElement[bool],
    measure: str | None = None,
) -> _Series:
    """Read numbers in order of time. `rename` gives a unit's name, or None to skip it."""
    query = select(LAYOUTS)
    if measure is not None:
        query = query.where(LAYOUTS.c.measure == measure)
    columns: dict[int, list[_Key | None]] = {}
    for row in connection.execute(query):
        names = (rename(row.measure, unit) for unit in _decode(row.units, tuple[str, ...]))
        keys = [None if one is None else (row.measure, row.under, one) for one in names]
        if any(key is not None for key in keys):
            columns[row.id] = keys
    rows = connection.execute(
        select(RUNS.c.started_s, MEASURES.c.layout_id, MEASURES.c.numbers)
        .select_from(MEASURES.join(RUNS))
        .where(*wanted)
        .order_by(RUNS.c.started_s, RUNS.c.id)
    )
    found: _Series = {}
    for row in rows:
        if row.layout_id not in columns:
            continue
        values = _decode(row.numbers, tuple[float | None, ...])
        for key, value in zip(columns[row.layout_id], values, strict=False):
            if key is not None and value is not None:
                found.setdefault(key, []).append(Point(row.started_s, value))
    return found


def _decode(text: str, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        raise HistoryError(
            f"the history's numbers are damaged ({error}); move it away to start a new one, or "
            "give another folder: --preflight-history=DIR"
        ) from error


def _failed_burn_in_runs(node: int) -> SqlalchemySelect[tuple[int]]:
    """The runs in which a burn-in check made a node not ready."""
    return (
        select(VERDICTS.c.run_id)
        .select_from(BLAMED.join(VERDICTS).join(EPISODES, VERDICTS.c.episode_id == EPISODES.c.id))
        .where(
            BLAMED.c.node_id == node,
            VERDICTS.c.outcome.in_(("fail", "flaky")),
            EPISODES.c.check_id.startswith("burn."),
        )
    )


def _name_in_any_slot(slot: int, _: str, unit: str) -> str | None:
    """The unit's name without its slot; None if it is not the GPU in this slot."""
    rest = of_slot(unit, slot)
    return None if rest is None else f"GPU {rest}".rstrip()


def _name_in_slot(slot: int, here: bool, measure: str, unit: str) -> str | None:  # noqa: FBT001  partial
    """The unit's name for the GPU in a slot; for a former slot, only what moves with the GPU."""
    return of_slot(unit, slot) if here or measure in OF_DEVICES else None


def _as_trends(found: _Series) -> tuple[Trend, ...]:
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
) -> tuple[GpuPlacement, ...]:
    """Of a node: its present GPUs, then former ones. Of a GPU: its places, oldest first."""
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
    found = [as_struct(GpuPlacement, row) for row in connection.execute(query.where(own))]
    if gpu is None:
        found.sort(key=lambda one: (one.until_s is not None, one.slot))
    return tuple(found)


NIGHT_S = 86400.0
"""N nights are the N days before the latest run, with or without a run each night."""

NIGHTS = 30


class History:
    """One history as of one moment."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def past(self, nodes: Sequence[str], leaves: Mapping[str, str]) -> Past:
        """What a planner needs to know of exactly this fleet's pairs; empty if never swept."""
        own = FLEETS.c.key == fleet_key(nodes, leaves)
        found = self._connection.execute(select(FLEETS.c.past).where(own)).scalar_one_or_none()
        return read_past(found or "")

    def units(
        self, nodes: Sequence[str], tier: str, nights: int = NIGHTS
    ) -> dict[str, tuple[float, ...]]:
        """What the devices of these nodes reached in runs of that tier, by `unit_key`.

        Nights in which a burn-in check made the node not ready are left out: they are not typical.
        """
        known = find_machines(self._connection, nodes)
        return series(self._connection, known, tier=tier, since_s=self._since(nights))

    def runs(self, most: int = NIGHTS) -> tuple[PastRun, ...]:
        """The latest runs, newest first."""
        return self._select_runs(_RUNS.order_by(RUNS.c.id.desc()).limit(most))

    def last_run(self, nodes: Sequence[str] = ()) -> PastRun | None:
        """The last run of all, or of exactly these nodes (on whatever leaves)."""
        query = _RUNS.order_by(RUNS.c.id.desc()).limit(1)
        if nodes:
            from preflight.fleet.nodeset import fold

            query = query.where(FLEETS.c.nodes == fold(sorted(nodes)))
        return next(iter(self._select_runs(query)), None)

    def run(self, nonce: str) -> PastRun | None:
        """The run with that nonce, as in report.json; None if it is not in the history."""
        query = _RUNS.where(RUNS.c.nonce == nonce).order_by(RUNS.c.id.desc()).limit(1)
        return next(iter(self._select_runs(query)), None)

    def changes(self, last: PastRun | None, since: PastRun | None = None) -> Changes:
        """What changed from the run `since` (default: `last`) to `last`; empty for None."""
        if last is None:
            return Changes(runs=(), before=None)
        first = since.id if since is not None else last.id
        runs = self._select_runs(_RUNS.where(RUNS.c.id.between(first, last.id)).order_by(RUNS.c.id))
        before = run_before(self._connection, first, last.id)
        return Changes(
            runs=runs,
            before=None
            if before is None
            else self._select_runs(_RUNS.where(RUNS.c.id == before))[0],
            **episode_changes(self._connection, first, last.id),
        )

    def night(self, last: PastRun) -> tuple[PastRun, ...]:
        """The runs of one night, oldest first: all waves of a sweep, or the single run."""
        if not last.sweep:
            return (last,)
        return self._select_runs(_RUNS.where(RUNS.c.sweep == last.sweep).order_by(RUNS.c.id))

    def since(self, last: PastRun) -> PastRun:
        """The first run of the night whose last run is `last`."""
        return self.night(last)[0]

    def worst(self, nights: int = NIGHTS, most: int = 20) -> tuple[NodeRecord, ...]:
        """The nodes that were not ready most often in the last `nights`, worst first."""
        return standings(self._connection, self._since(nights), most=most)

    def names(self) -> tuple[str, ...]:
        """Every node name in the history."""
        query = select(NODES.c.name).distinct().order_by(NODES.c.name)
        return tuple(self._connection.execute(query).scalars())

    def first_run(self) -> PastRun | None:
        """The oldest run in the history."""
        return next(iter(self._select_runs(_RUNS.order_by(RUNS.c.id).limit(1))), None)

    def measures(self, node: str) -> tuple[str, ...]:
        """The measures that the history has of a node."""
        if not (known := find_machines(self._connection, [node])):
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
        """One measure of a node, by unit and conditions, in natural order of the units."""
        if not (known := find_machines(self._connection, [node])):
            return ()
        return trends(self._connection, known[node].id, self._since(nights), measure=measure)

    def node(self, name: str, nights: int = NIGHTS) -> NodePast | None:
        """The history of the machine that last had this name; None if no run had it."""
        if not (known := find_machines(self._connection, [name])):
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
        """The history of one GPU, in whatever nodes it was; None if no run had it."""
        found = self._connection.execute(select(GPUS).where(GPUS.c.uuid == uuid)).one_or_none()
        if found is None:
            return None
        points_there = seats(self._connection, gpu=found.id)
        return GpuPast(
            uuid=found.uuid,
            model=found.model,
            seats=points_there,
            episodes=episodes_of(self._connection, gpu=found.id),
            trends=trends_of_gpu(self._connection, found.id, self._since(nights)),
        )

    def _since(self, nights: int) -> float:
        """The start of a window of nights that ends with the latest run."""
        latest = self._connection.execute(select(func.max(RUNS.c.started_s))).scalar_one()
        return (latest or 0.0) - nights * NIGHT_S

    def _when(self, run: int) -> float:
        query = select(RUNS.c.started_s).where(RUNS.c.id == run)
        return float(self._connection.execute(query).scalar_one_or_none() or 0.0)

    def _select_runs(self, query: Select[tuple[object, ...]]) -> tuple[PastRun, ...]:
        return tuple(_past_run(row) for row in self._connection.execute(query))


_RUNS = select(RUNS, RUNS.c.nonce.label("run"), FLEETS.c.nodes.label("fleet")).select_from(
    RUNS.join(FLEETS)
)


def _past_run(row: Row[tuple[object, ...]]) -> PastRun:
    covered = None
    if row.pairs is not None:
        covered = PairCoverage(
            **{name: getattr(row, name) or 0 for name in PairCoverage.__struct_fields__}
        )
    return as_struct(PastRun, row, systemic=bool(row.systemic), covered=covered)
