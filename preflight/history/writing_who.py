"""Which machine a name stood for that night, and which GPUs sat in it.

A node is its board's serial number; while none is told, its name stands for it. A GPU is its UUID,
wherever it sits.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import bindparam, insert, select, update

from preflight.history.ids import Rows
from preflight.history.night import LONGEST_WORD
from preflight.history.tables import GPUS, NODES, PLACES, STATES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from preflight.history.night import Night


class _Known(NamedTuple):
    id: int
    serial: str | None
    last_run: int


class _Place(NamedTuple):
    id: int
    node: int
    slot: int


class Who:
    """Machines and GPUs as they are known so far."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._nodes = Rows(connection, NODES)
        self._gpus = Rows(connection, GPUS)
        self._places = Rows(connection, PLACES)
        self._by_serial: dict[str, _Known] = {}
        self._by_name: dict[str, _Known] = {}
        for row in connection.execute(select(NODES)):
            self._learn(row.name, _Known(row.id, row.serial, row.last_run))
        self._by_uuid: dict[str, int] = {
            row.uuid: row.id for row in connection.execute(select(GPUS))
        }
        still = select(PLACES).where(PLACES.c.until_run.is_(None))
        self._sits = {
            row.gpu_id: _Place(row.id, row.node_id, row.slot) for row in connection.execute(still)
        }

    def take(self, night: Night, run: int) -> dict[str, int]:
        """Note who took part; return the number of each node by its name."""
        serials = Counter(one.serial[:LONGEST_WORD] for one in night.machines)
        numbers: dict[str, int] = {}
        seen: list[dict[str, object]] = []
        for one in night.machines:
            # Boards that were made with one serial number, or virtual machines: no identity.
            serial = one.serial[:LONGEST_WORD]
            serial = serial if serials[serial] == 1 else ""
            known = self._node(one.name, serial, run)
            numbers[one.name] = known.id
            seen.append({"node": known.id, "name": one.name, "serial": known.serial, "run": run})
        self._nodes.write()
        self._connection.execute(
            update(NODES)
            .where(NODES.c.id == bindparam("node"))
            .values(name=bindparam("name"), serial=bindparam("serial"), last_run=bindparam("run")),
            seen,
        )
        states = [
            {"node_id": numbers[one.name], "run_id": run, "state": one.state}
            for one in night.machines
        ]
        self._connection.execute(insert(STATES), states)
        self._seat(night, run, numbers)
        return numbers

    def _learn(self, name: str, known: _Known) -> None:
        if known.serial:
            self._by_serial[known.serial] = known
        if name not in self._by_name or self._by_name[name].last_run <= known.last_run:
            self._by_name[name] = known

    def _node(self, name: str, serial: str, run: int) -> _Known:
        named = self._by_name.get(name)
        if serial:
            found = self._by_serial.get(serial)
            if found is None and named is not None and named.serial is None:
                found = named  # it has only now told its serial number
        else:
            found = named
        if found is None:
            number = self._nodes.add(name=name, serial=serial or None, first_run=run, last_run=run)
            found = _Known(number, serial or None, run)
        known = _Known(found.id, found.serial or serial or None, run)
        self._learn(name, known)
        return known

    def _seat(self, night: Night, run: int, numbers: Mapping[str, int]) -> None:
        """Note which GPU sits where, if that changed."""
        told = [one for one in night.machines if one.gpus is not None]
        uuids = Counter(gpu.uuid for one in told for gpu in one.gpus or ())
        left: list[int] = []
        sits: dict[int, tuple[int, int]] = {}
        for one in told:
            for gpu in one.gpus or ():
                if gpu.uuid and uuids[gpu.uuid] == 1:
                    sits[self._gpu(gpu.uuid, gpu.model)] = numbers[one.name], gpu.slot
        self._gpus.write()
        asked = {numbers[one.name] for one in told}
        for gpu_id, place in list(self._sits.items()):
            now = sits.get(gpu_id)
            if now == (place.node, place.slot) or (now is None and place.node not in asked):
                continue
            left.append(place.id)
            del self._sits[gpu_id]
        if left:
            leave = update(PLACES).where(PLACES.c.id == bindparam("place")).values(until_run=run)
            self._connection.execute(leave, [{"place": place} for place in left])
        for gpu_id, (node, slot) in sits.items():
            if gpu_id not in self._sits:
                place_id = self._places.add(
                    gpu_id=gpu_id, node_id=node, slot=slot, since_run=run, until_run=None
                )
                self._sits[gpu_id] = _Place(place_id, node, slot)
        self._places.write()

    def _gpu(self, uuid: str, model: str) -> int:
        uuid, model = uuid[:LONGEST_WORD], model[:LONGEST_WORD]
        if uuid not in self._by_uuid:
            self._by_uuid[uuid] = self._gpus.add(uuid=uuid, model=model)
        return self._by_uuid[uuid]
