"""The questions that a history answers; each takes a few indexed queries."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Select, func, select

from preflight.core.statistics import grouped
from preflight.core.text import natural
from preflight.history.episodes import (
    as_struct,
    episode_changes,
    episodes_of,
    find_machines,
    node_records,
    run_before,
)
from preflight.history.run_record import (
    DEVICE_MEASURES,
    Changes,
    GpuPast,
    GpuPlacement,
    NodePast,
    NodeRecord,
    PairCoverage,
    Past,
    PastRun,
    Point,
    Trend,
    damaged,
    fleet_key,
    is_gpu_unit,
    read_past,
    split_gpu_unit,
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
    chunks,
)

_Key = tuple[str, str, str]
"""(measure, under, unit)."""

_Series = dict[_Key, list[Point]]
_T = TypeVar("_T")

MOST_UNITS = 4096
"""Of one measure of a node: 72 GPUs with a path to each other have more, but no node has them."""

_PLACES_BY_TIME = select(PLACES).order_by(PLACES.c.since_run, PLACES.c.id)

MOST_NAMES = 8 << 20
"""Characters of the names of all fleets in an answer; 64 waves of 4,096 odd names take a tenth."""


class _Layout(NamedTuple):
    measure: str
    under: str
    units: list[tuple[int, str]]
    """Every unit: its place among the numbers, and its name."""
    host: list[tuple[int, str]]
    """The units of no GPU."""
    slots: dict[str, list[tuple[int, str]]]
    """By slot, the units of its GPU, without the slot in their names."""


class NumberReader:
    """The numbers of a history: each layout is decoded once, each night of a node read once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._layouts: dict[int, _Layout] = {}
        for row in connection.execute(select(LAYOUTS)):
            units = list(enumerate(_decode(row.units, tuple[str, ...])))
            if len(units) > MOST_UNITS:
                raise damaged("numbers", f"a measure of {len(units)} units")
            slots = grouped(
                (key[0], (at, key[1])) for at, unit in units if (key := split_gpu_unit(unit))
            )
            host = [(index, unit) for index, unit in units if not is_gpu_unit(unit)]
            self._layouts[row.id] = _Layout(row.measure, row.under, units, host, slots)

    def trends(self, node: int, since_s: float) -> tuple[Trend, ...]:
        """Every series of a node since a time."""
        series: _Series = {}
        for night in self._nights(MEASURES.c.node_id == node, RUNS.c.started_s >= since_s):
            _add_points(series, night, night.layout.units)
        return _as_trends(series)

    def trends_of_gpu(self, gpu: int, since_s: float) -> tuple[Trend, ...]:
        """Every series of a GPU since a time, in whatever slot it was."""
        series: _Series = {}
        rows = self._connection.execute(_PLACES_BY_TIME.where(PLACES.c.gpu_id == gpu))
        for node, places in grouped((row.node_id, row) for row in rows).items():
            for night in self._nights(MEASURES.c.node_id == node, RUNS.c.started_s >= since_s):
                if (place := _place_during(places, night.run)) is not None:
                    units = night.layout.slots.get(str(place.slot), ())
                    _add_points(series, night, ((at, f"GPU {unit}".rstrip()) for at, unit in units))
        return _as_trends(series)

    def series(
        self, nodes: Mapping[str, Any], *, tier: str, since_s: float
    ) -> dict[str, tuple[float, ...]]:
        """What the devices of these nodes reached in a tier's nights without burn-in failures."""
        values_by_key: dict[str, list[float]] = {}
        names = {machine.id: name for name, machine in nodes.items()}
        query = select(PLACES.c.id, PLACES.c.gpu_id, GPUS.c.uuid).join(GPUS)
        query = query.where(PLACES.c.until_run.is_(None))
        present = {
            row.gpu_id: row
            for piece in chunks(names)
            for row in self._connection.execute(query.where(PLACES.c.node_id.in_(piece)))
        }
        places: dict[int, list[Any]] = {node: [] for node in names}
        for piece in chunks(present):
            for row in self._connection.execute(_PLACES_BY_TIME.where(PLACES.c.gpu_id.in_(piece))):
                places.setdefault(row.node_id, []).append(row)
        for node, placements in places.items():
            by_slot = grouped((str(place.slot), place) for place in placements)
            for night in self._nights(
                MEASURES.c.node_id == node,
                RUNS.c.started_s >= since_s,
                RUNS.c.tier == tier,
                RUNS.c.id.not_in(_failed_burn_in_runs(node)),
            ):
                owned_units = [(names[node], night.layout.host)] if node in names else []
                for slot, units in night.layout.slots.items():
                    place = _place_during(by_slot.get(slot, ()), night.run)
                    # In a former slot, only what moves with the GPU.
                    measure = night.layout.measure
                    if place is not None and (
                        place.id == present[place.gpu_id].id or measure in DEVICE_MEASURES
                    ):
                        owned_units.append((present[place.gpu_id].uuid, units))
                for owner, units in owned_units:
                    for index, unit in units:
                        if (value := night.value(index)) is not None and value > 0:
                            key = unit_key(owner, night.layout.measure, unit, night.layout.under)
                            values_by_key.setdefault(key, []).append(value)
        return {key: tuple(values) for key, values in values_by_key.items()}

    def _nights(self, *conditions: ColumnElement[bool]) -> Iterator[_NightNumbers]:
        """Read the rows of numbers in order of time."""
        rows = self._connection.execute(
            select(RUNS.c.started_s, RUNS.c.id, MEASURES.c.layout_id, MEASURES.c.numbers)
            .select_from(MEASURES.join(RUNS))
            .where(*conditions)
            .order_by(RUNS.c.started_s, RUNS.c.id)
        )
        for row in rows:
            if (layout := self._layouts.get(row.layout_id)) is not None:
                values = _decode(row.numbers, tuple[float | None, ...])
                yield _NightNumbers(row.started_s, row.id, layout, values)


class _NightNumbers(NamedTuple):
    started_s: float
    run: int
    layout: _Layout
    values: tuple[float | None, ...]

    def value(self, index: int) -> float | None:
        return self.values[index] if index < len(self.values) else None


def _add_points(series: _Series, night: _NightNumbers, units: Iterable[tuple[int, str]]) -> None:
    for index, unit in units:
        if (value := night.value(index)) is not None:
            key = (night.layout.measure, night.layout.under, unit)
            series.setdefault(key, []).append(Point(night.started_s, value))


def _place_during(places: Sequence[Any], run: int) -> Any | None:
    """The GPU's place at the time of a run; None if it had none. `places`: in order of time."""
    at = bisect_right(places, run, key=lambda place: place.since_run)
    last = places[at - 1] if at else None
    ended = last is None or (last.until_run is not None and run >= last.until_run)
    return None if ended else last


def _decode(text: str, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        raise damaged("numbers", str(error)) from error


def _failed_burn_in_runs(node: int) -> Select[tuple[int]]:
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


def _as_trends(series: _Series) -> tuple[Trend, ...]:
    return tuple(
        Trend(
            measure=measure,
            unit=unit,
            under=under,
            points=tuple(sorted(points, key=lambda point: point.started_s)),
        )
        for (measure, under, unit), points in sorted(
            series.items(), key=lambda row: (*row[0][:2], natural(row[0][2]))
        )
    )


def gpu_placements(
    connection: Connection, condition: ColumnElement[bool]
) -> tuple[GpuPlacement, ...]:
    """The GPUs, nodes and slots of these rows of PLACES, oldest first."""
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
        .where(condition)
        .order_by(PLACES.c.id)
    )
    return tuple(as_struct(GpuPlacement, row) for row in connection.execute(query))


NIGHT_S = 86400.0
"""The length of a night: N nights are the N days that end with the latest run."""

NIGHTS = 30


class History:
    """One history as of one moment."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @cached_property
    def _numbers(self) -> NumberReader:
        return NumberReader(self._connection)

    def past(self, nodes: Sequence[str], leaves: Mapping[str, str]) -> Past:
        """What a planner needs to know of exactly this fleet's pairs; empty if never swept."""
        query = select(FLEETS.c.past).where(FLEETS.c.key == fleet_key(nodes, leaves))
        return read_past(self._connection.execute(query).scalar_one_or_none() or "")

    def units(
        self, nodes: Sequence[str], tier: str, nights: int = NIGHTS
    ) -> dict[str, tuple[float, ...]]:
        """What the devices of these nodes reached in runs of that tier, by `unit_key`.

        Nights in which a burn-in check made the node not ready are left out: they are not typical.
        """
        machines = find_machines(self._connection, nodes)
        return self._numbers.series(machines, tier=tier, since_s=self._window_start_s(nights))

    def last_run(self) -> PastRun | None:
        """The last run in the history."""
        return next(iter(self._select_runs(_RUNS.order_by(RUNS.c.id.desc()).limit(1))), None)

    def changes(self, last: PastRun | None, since: PastRun | None = None) -> Changes:
        """What changed from the run `since` (default: the night's first) to `last`."""
        if last is None:
            return Changes(runs=(), before=None)
        first = (since or self.night(last)[0]).id
        runs = self._select_runs(_RUNS.where(RUNS.c.id.between(first, last.id)).order_by(RUNS.c.id))
        before = run_before(self._connection, first, last.id)
        return Changes(
            runs=runs,
            before=next(iter(self._select_runs(_RUNS.where(RUNS.c.id == before))), None),
            **episode_changes(self._connection, first, last.id),
        )

    def night(self, last: PastRun) -> tuple[PastRun, ...]:
        """The runs of one night, oldest first: all waves of a sweep, or the single run."""
        if not last.sweep:
            return (last,)
        return self._select_runs(_RUNS.where(RUNS.c.sweep == last.sweep).order_by(RUNS.c.id))

    def worst(self, nights: int = NIGHTS, most: int = 20) -> tuple[NodeRecord, ...]:
        """The nodes that were not ready most often in the last `nights`, worst first."""
        return node_records(self._connection, self._window_start_s(nights), most=most)

    def names(self) -> tuple[str, ...]:
        """Every node name in the history."""
        query = select(NODES.c.name).distinct().order_by(NODES.c.name)
        return tuple(self._connection.execute(query).scalars())

    def first_run(self) -> PastRun | None:
        """The oldest run in the history."""
        return next(iter(self._select_runs(_RUNS.order_by(RUNS.c.id).limit(1))), None)

    def node(self, name: str, nights: int = NIGHTS) -> NodePast | None:
        """The history of the machine that last had this name; None if no run had it."""
        if not (machines := find_machines(self._connection, [name])):
            return None
        machine = machines[name]
        since_s = self._window_start_s(nights)
        unjudged = NodeRecord(node=name, serial=machine.serial or "", judged=0, bad=0, flaky=0)
        records = node_records(self._connection, since_s, node=machine.id)
        seats = gpu_placements(self._connection, PLACES.c.node_id == machine.id)
        query = select(NODES.c.serial).where(NODES.c.name == name, NODES.c.id != machine.id)
        return NodePast(
            standing=records[0] if records else unjudged,
            first_s=self._run_start_s(machine.first_run),
            last_s=self._run_start_s(machine.last_run),
            seats=tuple(sorted(seats, key=lambda seat: (seat.until_s is not None, seat.slot))),
            episodes=episodes_of(self._connection, machine.id),
            trends=self._numbers.trends(machine.id, since_s),
            namesakes=tuple(serial or "" for serial in self._connection.execute(query).scalars()),
        )

    def gpu(self, uuid: str, nights: int = NIGHTS) -> GpuPast | None:
        """The history of one GPU, in whatever nodes it was; None if no run had it."""
        row = self._connection.execute(select(GPUS).where(GPUS.c.uuid == uuid)).one_or_none()
        if row is None:
            return None
        return GpuPast(
            uuid=row.uuid,
            model=row.model,
            seats=gpu_placements(self._connection, PLACES.c.gpu_id == row.id),
            episodes=episodes_of(self._connection, gpu=row.id),
            trends=self._numbers.trends_of_gpu(row.id, self._window_start_s(nights)),
        )

    def _window_start_s(self, nights: int) -> float:
        """The start of a window of nights that ends with the latest run."""
        latest = self._connection.execute(select(func.max(RUNS.c.started_s))).scalar_one()
        return (latest or 0.0) - nights * NIGHT_S

    def _run_start_s(self, run: int) -> float:
        query = select(RUNS.c.started_s).where(RUNS.c.id == run)
        return float(self._connection.execute(query).scalar_one_or_none() or 0.0)

    def _select_runs(self, query: Select[tuple[object, ...]]) -> tuple[PastRun, ...]:
        rows = self._connection.execute(query).all()
        fleets: dict[int, str] = {}
        # Each fleet once: many runs may share one with a long text.
        for piece in chunks({row.fleet_id for row in rows}):
            fleet_rows = select(FLEETS.c.id, FLEETS.c.nodes).where(FLEETS.c.id.in_(piece))
            fleets |= {row.id: row.nodes for row in self._connection.execute(fleet_rows)}
        rows = [row for row in rows if row.fleet_id in fleets]
        if (characters := sum(len(fleets[row.fleet_id]) for row in rows)) > MOST_NAMES:
            raise damaged("fleets", f"{characters} characters of names")
        return tuple(_past_run(row, fleets[row.fleet_id]) for row in rows)


_RUNS = select(RUNS, RUNS.c.nonce.label("run"))


def _past_run(row: Row[tuple[object, ...]], fleet: str) -> PastRun:
    covered = None
    if row.pairs is not None:
        covered = PairCoverage(
            **{name: getattr(row, name) or 0 for name in PairCoverage.__struct_fields__}
        )
    return as_struct(PastRun, row, fleet=fleet, systemic=bool(row.systemic), covered=covered)
