"""Writing nights down: whole nights or nothing, and one writer at a time."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import insert, select, update

from preflight.history.coverage_file import MOST_FLEETS, fleet_key
from preflight.history.database import transaction
from preflight.history.ids import Rows
from preflight.history.night import BAD
from preflight.history.past import Past
from preflight.history.schema import prepare
from preflight.history.tables import COUNTS, FLEETS, RUNS, STATES
from preflight.history.trouble import HistoryError
from preflight.history.writing_found import Finds
from preflight.history.writing_numbers import Figures
from preflight.history.writing_who import Who
from preflight.stats.shared_cause import shared_cause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from preflight.history.night import Covered, Night, Swept
    from preflight.history.place import Place


@contextmanager
def writing(place: Place) -> Iterator[Writer]:
    """Hold the history for as long as nights are added; HistoryError if it cannot be had.

    The file of a folder must be there (`place.make`); an empty one is made a history.
    """
    with transaction(place, writes=True) as connection:
        prepare(connection, place)
        yield Writer(connection)


class Writer:
    """One transaction in which nights are added in the order in which they were."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._runs = Rows(connection, RUNS)
        self._fleets = Rows(connection, FLEETS)
        self._who = Who(connection)
        self._finds = Finds(connection)
        self._figures = Figures(connection)

    def add(self, night: Night, swept: Swept) -> Past:
        """Add one night, and say what is known of its fleet's pairs now."""
        fleet, before = self._fleet(night)
        past, covered = swept(before)
        run = self._run(night, fleet, covered)
        self._keep(fleet, past, run)
        nodes = self._who.take(night, run)
        self._weigh(night.sweep)
        self._finds.take(night, run, fleet, nodes)
        self._figures.take(night, run, nodes)
        rows = [
            {"run_id": run, "check_id": check, "outcome": outcome, "verdicts": number}
            for check, by_outcome in night.counts.items()
            for outcome, number in by_outcome.items()
        ]
        if rows:
            self._connection.execute(insert(COUNTS), rows)
        return past

    def _fleet(self, night: Night) -> tuple[int, Past]:
        key = fleet_key(night.names, night.leaves)
        query = select(FLEETS.c.id, FLEETS.c.past).where(FLEETS.c.key == key)
        found = self._connection.execute(query).one_or_none()
        if found is not None:
            return found.id, read_past(found.past)
        number = self._fleets.add(key=key, nodes=night.folded, past="", last_run=0)
        self._fleets.write()
        return number, Past()

    def _run(self, night: Night, fleet: int, covered: Covered | None) -> int:
        states = [one.state for one in night.machines]
        bad = sum(state in BAD for state in states)
        number = self._runs.add(
            nonce=night.run,
            fleet_id=fleet,
            started_s=night.started_s,
            seconds=night.seconds,
            tier=night.tier,
            preflight=night.preflight,
            nodes=len(states),
            ready=states.count("ready"),
            not_ready=bad,
            systemic=int(shared_cause(bad, len(states))),
            sweep=night.sweep,
            **({} if covered is None else msgspec.structs.asdict(covered)),
        )
        self._runs.write()
        return number

    def _weigh(self, sweep: str) -> None:
        """See whether a sweep's waves have one cause together that none of them has by itself.

        Two of two nodes prove nothing; two of two in each of eight waves are not sixteen faults.
        """
        if not sweep:
            return
        runs = select(RUNS.c.id, RUNS.c.nodes, RUNS.c.not_ready).where(RUNS.c.sweep == sweep)
        waves = self._connection.execute(runs).all()
        asked = select(STATES).where(STATES.c.run_id.in_([wave.id for wave in waves]))
        rows = self._connection.execute(asked.order_by(STATES.c.run_id))
        latest = {row.node_id: row.state for row in rows}  # a wave may have been done again
        bad = sum(state in BAD for state in latest.values())
        together = shared_cause(bad, len(latest))
        for wave in waves:
            alone = shared_cause(wave.not_ready, wave.nodes)
            own = update(RUNS).where(RUNS.c.id == wave.id)
            self._connection.execute(own.values(systemic=int(together or alone)))

    def _keep(self, fleet: int, past: Past, run: int) -> None:
        """Keep a fleet's past; of the fleets swept longest ago, the nights alone."""
        text = msgspec.json.encode(past).decode() if past != Past() else ""
        own = FLEETS.c.id == fleet
        self._connection.execute(update(FLEETS).where(own).values(past=text, last_run=run))
        latest = select(FLEETS.c.id).where(FLEETS.c.past != "").order_by(FLEETS.c.last_run.desc())
        too_many = self._connection.execute(latest.offset(MOST_FLEETS)).scalars().all()
        if too_many:
            old = FLEETS.c.id.in_(too_many)
            self._connection.execute(update(FLEETS).where(old).values(past=""))


def read_past(text: str) -> Past:
    """Read what is kept of a fleet's rounds; HistoryError if somebody else wrote it."""
    try:
        known: Past = msgspec.json.decode(text, type=Past) if text else Past()
    except (ValueError, RecursionError) as error:
        raise HistoryError(
            f"the history's rounds are damaged ({error}); move it away to begin anew, or give "
            "another folder: --preflight-history=DIR"
        ) from error
    else:
        return known
