"""The questions that are asked of a history; each is a few queries by an index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import func, select

from preflight.history.coverage_file import fleet_key
from preflight.history.past import Past
from preflight.history.queries_found import episodes_of, run_before, window
from preflight.history.queries_nodes import standings, who
from preflight.history.queries_numbers import series, trends, trends_of_gpu
from preflight.history.queries_seats import seats
from preflight.history.tables import FLEETS, GPUS, LAYOUTS, MEASURES, NODES, RUNS
from preflight.history.told import Changes, Covered, GpuPast, NodePast, Ran
from preflight.history.writing import read_past

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, Row
    from sqlalchemy.sql import Select

    from preflight.history.told import Standing, Trend

NIGHT_S = 86400.0
"""A window of N nights is so long before the latest run; nights without a run are not made up."""

NIGHTS = 30


class History:
    """One history as of one moment; without a connection, one in which nothing is."""

    def __init__(self, connection: Connection | None) -> None:
        self._connection = connection

    def past(self, nodes: Sequence[str], leaves: Mapping[str, str]) -> Past:
        """What planners want to know of this very fleet's pairs; empty if it was never swept."""
        if self._connection is None:
            return Past()
        own = FLEETS.c.key == fleet_key(nodes, leaves)
        found = self._connection.execute(select(FLEETS.c.past).where(own)).scalar_one_or_none()
        return read_past(found or "")

    def units(
        self, nodes: Sequence[str], tier: str, nights: int = NIGHTS
    ) -> dict[str, tuple[float, ...]]:
        """What the devices of these nodes reached in runs of that tier, by `units.unit_key`.

        Nights in which a burn-in check condemned the node are left out: they are not its usual.
        """
        if self._connection is None:
            return {}
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
        if self._connection is None or last is None:
            return Changes(runs=(), before=None)
        first = since.id if since is not None else last.id
        told = self._ran(_RUNS.where(RUNS.c.id.between(first, last.id)).order_by(RUNS.c.id))
        before = run_before(self._connection, first, last.id)
        found = window(self._connection, first, last.id)
        return Changes(
            runs=told,
            before=None if before is None else self._ran(_RUNS.where(RUNS.c.id == before))[0],
            new=found.new,
            still=found.still,
            recovered=found.recovered,
            unseen=found.unseen,
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
        if self._connection is None:
            return ()
        return standings(self._connection, self._since(nights), most=most)

    def names(self) -> tuple[str, ...]:
        """Every name that a node ever had."""
        if self._connection is None:
            return ()
        query = select(NODES.c.name).distinct().order_by(NODES.c.name)
        return tuple(self._connection.execute(query).scalars())

    def first_run(self) -> Ran | None:
        """The first run that is remembered."""
        return next(iter(self._ran(_RUNS.order_by(RUNS.c.id).limit(1))), None)

    def measures(self, node: str) -> tuple[str, ...]:
        """What was ever measured of a node."""
        if self._connection is None or not (known := who(self._connection, [node])):
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
        if self._connection is None or not (known := who(self._connection, [node])):
            return ()
        return trends(self._connection, known[node].id, self._since(nights), measure=measure)

    def node(self, name: str, nights: int = NIGHTS) -> NodePast | None:
        """All that is known of the machine that bore this name last; None if no run had it."""
        if self._connection is None or not (known := who(self._connection, [name])):
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
        if self._connection is None:
            return None
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
        if self._connection is None:
            return 0.0
        latest = self._connection.execute(select(func.max(RUNS.c.started_s))).scalar_one()
        return (latest or 0.0) - nights * NIGHT_S

    def _when(self, run: int) -> float:
        if self._connection is None:
            return 0.0
        query = select(RUNS.c.started_s).where(RUNS.c.id == run)
        return float(self._connection.execute(query).scalar_one_or_none() or 0.0)

    def _ran(self, query: Select[tuple[object, ...]]) -> tuple[Ran, ...]:
        if self._connection is None:
            return ()
        return tuple(_told(row) for row in self._connection.execute(query))


_RUNS = select(RUNS, FLEETS.c.nodes.label("fleet")).select_from(RUNS.join(FLEETS))


def _told(row: Row[tuple[object, ...]]) -> Ran:
    covered = None
    if row.pairs is not None:
        covered = Covered(**{name: getattr(row, name) or 0 for name in Covered.__struct_fields__})
    return Ran(
        id=row.id,
        run=row.nonce,
        fleet=row.fleet,
        started_s=row.started_s,
        seconds=row.seconds,
        tier=row.tier,
        nodes=row.nodes,
        ready=row.ready,
        not_ready=row.not_ready,
        systemic=bool(row.systemic),
        sweep=row.sweep,
        covered=covered,
    )
