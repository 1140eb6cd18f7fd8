"""Writes nights into a history: whole nights or nothing, one writer at a time.

An episode is one finding for as long as it lasts. It ends in the night in which its check is fine
on that component; a night without that check ends nothing.

A node is identified by its board's serial number, or by its name if it reports none; a GPU by its
UUID, in whatever slot. One node's report alone does not move a board or a GPU: the node that had it
must report another board, or its GPUs without that one.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, insert, select, update

from preflight.check import FLEET
from preflight.core.statistics import shared_cause
from preflight.history.run_record import (
    BAD,
    DIGITS,
    LONGEST_SENTENCE,
    LONGEST_WORD,
    Past,
    fleet_key,
    read_past,
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
    STATES,
    TEXTS,
    VERDICTS,
    Rows,
    chunks,
    prepare,
    transaction,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from preflight.history.place import Place
    from preflight.history.run_record import (
        CoverageUpdate,
        Night,
        NightFinding,
        Numbers,
        PairCoverage,
    )


_MOST_FLEETS = 64
"""Fleets whose rounds are stored; those whose last sweep is oldest lose them first."""


@contextmanager
def writing(place: Place) -> Iterator[Writer]:
    """Lock the history while nights are added; HistoryError if it cannot be written.

    The file of a folder must exist (`place.create`); an empty file becomes a history.
    """
    with transaction(place, writes=True) as connection:
        prepare(connection, place)
        yield Writer(connection)


class Writer:
    """One transaction in which nights are added in order of time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._runs = Rows(connection, RUNS)
        self._fleets = Rows(connection, FLEETS)
        self._machines = MachineWriter(connection)
        self._episode_writer = EpisodeWriter(connection)
        self._number_writer = NumberWriter(connection)

    def add(self, night: Night, update_coverage: CoverageUpdate) -> Past:
        """Add one night, and return the new past of its fleet's pairs."""
        fleet, before = self._find_or_add_fleet(night)
        past, covered = update_coverage(before)
        run = self._add_run(night, fleet, covered)
        self._store_past(fleet, past, run)
        nodes = self._machines.add_night(night, run)
        self._mark_shared_cause(night.sweep)
        self._episode_writer.add_night(night, run, fleet, nodes)
        self._number_writer.add_night(night, run, nodes)
        return past

    def _find_or_add_fleet(self, night: Night) -> tuple[int, Past]:
        key = fleet_key(night.names, night.leaves)
        query = select(FLEETS.c.id, FLEETS.c.past).where(FLEETS.c.key == key)
        row = self._connection.execute(query).one_or_none()
        if row is not None:
            return row.id, read_past(row.past)
        number = self._fleets.add(key=key, nodes=night.folded, past="", last_run=0)
        self._fleets.write()
        return number, Past()

    def _add_run(self, night: Night, fleet: int, covered: PairCoverage | None) -> int:
        states = [machine.state for machine in night.machines]
        bad = sum(state in BAD for state in states)
        number = self._runs.add(
            nonce=night.run,
            fleet_id=fleet,
            started_s=night.started_s,
            seconds=night.seconds,
            tier=night.tier,
            nodes=len(states),
            ready=states.count("ready"),
            not_ready=bad,
            systemic=int(shared_cause(bad, len(states))),
            sweep=night.sweep,
            **({} if covered is None else msgspec.structs.asdict(covered)),
        )
        self._runs.write()
        return number

    def _mark_shared_cause(self, sweep: str) -> None:
        """Mark a sweep's waves as systemic if a shared cause shows only in all of them together.

        Two bad nodes of two prove nothing; two of two in each of eight waves are not sixteen
        faults.
        """
        if not sweep:
            return
        runs = select(RUNS.c.id, RUNS.c.nodes, RUNS.c.not_ready).where(RUNS.c.sweep == sweep)
        waves = self._connection.execute(runs).all()
        query = select(STATES).where(STATES.c.run_id.in_([wave.id for wave in waves]))
        rows = self._connection.execute(query.order_by(STATES.c.run_id))
        latest = {row.node_id: row.state for row in rows}  # a wave may have been repeated
        bad = sum(state in BAD for state in latest.values())
        together = shared_cause(bad, len(latest))
        for wave in waves:
            alone = shared_cause(wave.not_ready, wave.nodes)
            mark = update(RUNS).where(RUNS.c.id == wave.id).values(systemic=int(together or alone))
            self._connection.execute(mark)

    def _store_past(self, fleet: int, past: Past, run: int) -> None:
        """Store a fleet's past; the fleets with the oldest sweeps keep only their nights."""
        text = msgspec.json.encode(past).decode() if past != Past() else ""
        query = update(FLEETS).where(FLEETS.c.id == fleet).values(past=text, last_run=run)
        self._connection.execute(query)
        latest = select(FLEETS.c.id).where(FLEETS.c.past != "").order_by(FLEETS.c.last_run.desc())
        too_many = self._connection.execute(latest.offset(_MOST_FLEETS)).scalars().all()
        if too_many:
            query = update(FLEETS).where(FLEETS.c.id.in_(too_many)).values(past="")
            self._connection.execute(query)


_Key = tuple[str, str, int]
"""(check, component, fleet); fleet 0 for nodes and pairs, which may be in several fleets."""


class EpisodeWriter:
    """Writes episodes; knows the open ones."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._episodes = Rows(connection, EPISODES)
        self._verdicts = Rows(connection, VERDICTS)
        self._texts = Rows(connection, TEXTS)
        self._known_texts: dict[str, int] = {}
        open_rows = select(EPISODES).where(EPISODES.c.closed_run.is_(None))
        self._open: dict[_Key, int] = {
            (row.check_id, row.about, row.fleet_id): row.id for row in connection.execute(open_rows)
        }

    def add_night(self, night: Night, run: int, fleet: int, nodes: Mapping[str, int]) -> None:
        """Add a night's findings, and end the episodes that are fine now."""
        self._add_texts([_shorten(finding.sentence) for finding in night.findings])
        self._close_episodes(night, run, fleet)
        continued: list[dict[str, object]] = []
        blamed: list[dict[str, int]] = []
        for finding in night.findings:
            text = self._known_texts[_shorten(finding.sentence)]
            # A finding about neither a node nor a pair belongs to one fleet.
            of_fleet = finding.about == FLEET or not finding.is_node_or_pair
            key = (finding.check, finding.about, fleet if of_fleet else 0)
            episode = self._open.get(key)
            if episode is None:
                episode = self._open_episode(key, finding, run, text)
            else:
                continued.append({"episode": episode, "outcome": finding.outcome, "text": text,
                                "run": run})  # fmt: skip
            number = self._verdicts.add(
                run_id=run, episode_id=episode, outcome=finding.outcome, text_id=text
            )
            blamed += [
                {"node_id": nodes[name], "verdict_id": number}
                for name in dict.fromkeys(finding.nodes)
                if name in nodes
            ]
        self._episodes.write()
        if continued:
            self._connection.execute(_CONTINUES, continued)
        self._verdicts.write()
        if blamed:
            self._connection.execute(insert(BLAMED), blamed)

    def _open_episode(self, key: _Key, finding: NightFinding, run: int, text: int) -> int:
        check, about, fleet = key
        episode = self._episodes.add(
            check_id=check,
            about=about,
            fleet_id=fleet,
            outcome=finding.outcome,
            text_id=text,
            first_run=run,
            last_run=run,
            times=1,
            closed_run=None,
        )
        self._open[key] = episode
        return episode

    def _close_episodes(self, night: Night, run: int, fleet: int) -> None:
        """End every episode whose component was checked tonight and is fine."""
        findings = {(finding.check, finding.about) for finding in night.findings}
        ended: list[dict[str, int]] = []
        for key, episode in list(self._open.items()):
            check, about, key_fleet = key
            fine = night.fine.get(check)
            if fine is None or (check, about) in findings or key_fleet not in (0, fleet):
                continue
            # Neither node nor pair (an uplink): every check of this fleet includes it.
            if about in fine or (key_fleet and about != FLEET):
                ended.append({"episode": episode, "run": run})
                del self._open[key]
        if ended:
            self._connection.execute(_ENDS, ended)

    def _add_texts(self, texts: list[str]) -> None:
        new = [text for text in dict.fromkeys(texts) if text not in self._known_texts]
        for piece in chunks(new):
            query = select(TEXTS).where(TEXTS.c.text.in_(piece))
            self._known_texts |= {row.text: row.id for row in self._connection.execute(query)}
        for text in new:
            if text not in self._known_texts:
                self._known_texts[text] = self._texts.add(text=text)
        self._texts.write()


_CONTINUES = (
    update(EPISODES)
    .where(EPISODES.c.id == bindparam("episode"))
    .values(
        outcome=bindparam("outcome"),
        text_id=bindparam("text"),
        last_run=bindparam("run"),
        times=EPISODES.c.times + 1,
    )
)

_ENDS = (
    update(EPISODES)
    .where(EPISODES.c.id == bindparam("episode"))
    .values(closed_run=bindparam("run"))
)


def _shorten(sentence: str) -> str:
    cut = sentence[: LONGEST_SENTENCE - 3] + "..."
    return cut if len(sentence) > LONGEST_SENTENCE else sentence


_LARGEST = 1e300
"""Rounding a larger number may make it infinite."""

_Layout = tuple[str, str, str]
"""(measure, under, units): the same for most nodes and nights."""


class NumberWriter:
    """Writes measured numbers; knows the layouts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._layouts = Rows(connection, LAYOUTS)
        self._measures = Rows(connection, MEASURES)
        self._known: dict[_Layout, int] = {
            (row.measure, row.under, row.units): row.id
            for row in connection.execute(select(LAYOUTS))
        }

    def add_night(self, night: Night, run: int, nodes: Mapping[str, int]) -> None:
        """Add the numbers of one night."""
        for numbers in night.numbers:
            if numbers.node in nodes and any(value is not None for value in numbers.values):
                self._measures.add(
                    run_id=run,
                    node_id=nodes[numbers.node],
                    layout_id=self._find_or_add_layout(numbers),
                    numbers=encode_numbers(numbers.values),
                )
        self._layouts.write()
        self._measures.write()

    def _find_or_add_layout(self, numbers: Numbers) -> int:
        units = msgspec.json.encode(numbers.units).decode()
        key = (numbers.measure, numbers.under[:LONGEST_WORD], units)
        if key not in self._known:
            self._known[key] = self._layouts.add(measure=key[0], under=key[1], units=units)
        return self._known[key]


def encode_numbers(values: tuple[float | None, ...]) -> str:
    """Encode numbers as JSON with four significant digits; null for NaN and infinity."""
    return "[" + ",".join(map(_json_number, values)) + "]"


def _json_number(value: float | None) -> str:
    if value is None or not abs(value) <= _LARGEST:  # NaN is not
        return "null"
    return f"{value:.{DIGITS}g}"


class _KnownNode(NamedTuple):
    id: int
    serial: str | None
    last_run: int


class _Placement(NamedTuple):
    id: int
    node: int
    slot: int


class MachineWriter:
    """Writes machines and GPUs; knows all earlier ones."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._nodes = Rows(connection, NODES)
        self._gpus = Rows(connection, GPUS)
        self._places = Rows(connection, PLACES)
        self._by_serial: dict[str, _KnownNode] = {}
        self._by_name: dict[str, _KnownNode] = {}
        self._name_of: dict[int, str] = {}
        for row in connection.execute(select(NODES)):
            self._index_node(row.name, _KnownNode(row.id, row.serial, row.last_run))
        self._by_uuid: dict[str, int] = {
            row.uuid: row.id for row in connection.execute(select(GPUS))
        }
        open_rows = select(PLACES).where(PLACES.c.until_run.is_(None))
        self._placements = {
            row.gpu_id: _Placement(row.id, row.node_id, row.slot)
            for row in connection.execute(open_rows)
        }

    def add_night(self, night: Night, run: int) -> dict[str, int]:
        """Add the nodes that took part; return the number of each by its name."""
        reports = Counter(machine.serial[:LONGEST_WORD] for machine in night.machines)
        # Boards with a shared serial number, or virtual machines: it identifies none of them.
        serials = {
            machine.name: serial if reports[serial := machine.serial[:LONGEST_WORD]] == 1 else ""
            for machine in night.machines
        }
        nodes = {name: self._find_or_add_node(name, serials, run) for name in night.names}
        self._nodes.write()
        self._connection.execute(
            update(NODES)
            .where(NODES.c.id == bindparam("node"))
            .values(name=bindparam("name"), serial=bindparam("serial"), last_run=bindparam("run")),
            [
                {"node": node.id, "name": name, "serial": node.serial, "run": run}
                for name, node in nodes.items()
            ],
        )
        numbers = {name: node.id for name, node in nodes.items()}
        states = [
            {"node_id": numbers[machine.name], "run_id": run, "state": machine.state}
            for machine in night.machines
        ]
        self._connection.execute(insert(STATES), states)
        self._write_placements(night, run, numbers)
        return numbers

    def _index_node(self, name: str, node: _KnownNode) -> None:
        self._name_of[node.id] = name
        if node.serial:
            self._by_serial[node.serial] = node
        if name not in self._by_name or self._by_name[name].last_run <= node.last_run:
            self._by_name[name] = node

    def _find_or_add_node(self, name: str, serials: Mapping[str, str], run: int) -> _KnownNode:
        """Find or add a node by its serial number, then by its name; no two names share one."""
        serial, namesake = serials[name], self._by_name.get(name)
        node = self._by_serial.get(serial)
        former_name = self._name_of[node.id] if node else name
        silent_now = former_name != name and not serials.get(former_name)
        if node and silent_now and self._by_name[former_name].id == node.id:
            node, serial = None, ""  # the node that had this board may still have it
        if node is None and namesake and not (serials[name] and namesake.serial):
            node = namesake  # it reports no serial, or reports one for the first time
        if node is None:
            number = self._nodes.add(name=name, serial=serial or None, first_run=run, last_run=run)
            node = _KnownNode(number, serial or None, run)
        current = _KnownNode(node.id, node.serial or serial or None, run)
        self._index_node(name, current)
        return current

    def _write_placements(self, night: Night, run: int, numbers: Mapping[str, int]) -> None:
        """Write which GPUs are in which slots, where that changed."""
        gpus_of_node = {
            machine.name: machine.gpus for machine in night.machines if machine.gpus is not None
        }
        uuids = Counter(gpu.uuid[:LONGEST_WORD] for gpus in gpus_of_node.values() for gpu in gpus)
        vacated: list[int] = []
        reported: dict[int, tuple[int, int]] = {}
        ambiguous: set[tuple[str, int]] = set()
        for name, gpus in gpus_of_node.items():
            for gpu in gpus:
                uuid = gpu.uuid[:LONGEST_WORD]
                if uuid and uuids[uuid] == 1:
                    reported[self._find_or_add_gpu(uuid, gpu.model)] = numbers[name], gpu.slot
                elif uuid in self._by_uuid:
                    ambiguous.add((name, self._by_uuid[uuid]))  # another node reports it, too
        self._gpus.write()
        for gpu_id, place in list(self._placements.items()):
            name = self._name_of[place.node]
            stays = reported.get(gpu_id) == (place.node, place.slot)
            if stays or (name, gpu_id) in ambiguous or name not in gpus_of_node:
                continue
            vacated.append(place.id)
            del self._placements[gpu_id]
        if vacated:
            query = update(PLACES).where(PLACES.c.id == bindparam("place")).values(until_run=run)
            self._connection.execute(query, [{"place": place} for place in vacated])
        for gpu_id, (node, slot) in reported.items():
            if gpu_id not in self._placements:
                place_id = self._places.add(
                    gpu_id=gpu_id, node_id=node, slot=slot, since_run=run, until_run=None
                )
                self._placements[gpu_id] = _Placement(place_id, node, slot)
        self._places.write()

    def _find_or_add_gpu(self, uuid: str, model: str) -> int:
        if uuid not in self._by_uuid:
            self._by_uuid[uuid] = self._gpus.add(uuid=uuid, model=model[:LONGEST_WORD])
        return self._by_uuid[uuid]
