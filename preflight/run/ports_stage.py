"""Stage `net`: the job's ports, bound for real and connected to from every other node."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from preflight.core.remote_command import ReachError
from preflight.errors import WireError
from preflight.facts.model import decode_ports
from preflight.transport.bundle import start_payload
from preflight.transport.payload_session import LEASE_S, Leased

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from preflight.core.remote_command import Connection
    from preflight.facts.model import Ports
    from preflight.fleet.model import Host


DATA_PORTS = 2
"""Random ephemeral ports per node, each tried by the scheduled partners only."""

PATIENCE_S = 10.0
"""How long the nodes that are ready wait for the rest before they go on without them."""

_TURN_S = 1.0
"""How often a lease is looked after while a node or the others are waited for."""

_Arrived = TypeVar("_Arrived")
_Port = Annotated[int, Meta(ge=1, le=65535)]


class _Listening(Struct, frozen=True):
    listening: Annotated[tuple[_Port, ...], Meta(max_length=16)]
    master_bound: bool


class _Tried(Struct, frozen=True):
    tried: int


class PortPlan(Struct, frozen=True, kw_only=True):
    """Who hosts the master port, and who will talk to whom in the sweep."""

    master: str
    master_port: int
    partners: dict[str, tuple[str, ...]]


class PortStage:
    """All nodes step together: listen, then try, then prove the port free again.

    A node that falls out at any step is reported with the reason, and the others go on.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        connections: Mapping[str, Connection],
        plan: PortPlan,
        nonce: str,
        deadline_s: float,
    ) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._connections = connections
        self._plan = plan
        self._nonce = nonce
        self._ends = time.monotonic() + deadline_s
        self._moved = threading.Condition()
        self._listening: dict[str, _Listening] = {}
        self._tried: dict[str, _Tried] = {}
        self._reports: dict[str, Ports] = {}
        self._troubles: dict[str, str] = {}
        self._may_try = threading.Event()
        self._may_finish = threading.Event()

    def run(
        self, progress: Callable[[int, int, list[str]], None]
    ) -> tuple[dict[str, Ports], dict[str, str]]:
        """Return the nodes' reports, and why the others have none."""
        for name in self._hosts:
            threading.Thread(target=self._serve, args=(name,), daemon=True).start()
        try:
            self._await(self._listening, progress)
            self._may_try.set()
            self._await(self._tried, progress)
            self._may_finish.set()
            self._await(self._reports, progress)
        finally:
            self._may_try.set()
            self._may_finish.set()
        with self._moved:
            silent = self._hosts.keys() - self._reports.keys() - self._troubles.keys()
            late = dict.fromkeys(sorted(silent), "gave no answer in time")
            return dict(self._reports), {**self._troubles, **late}

    def _await(
        self, arrived: Mapping[str, object], progress: Callable[[int, int, list[str]], None]
    ) -> None:
        """Wait until every node has arrived at a step or fallen out, at most PATIENCE_S."""
        patience = min(self._ends, time.monotonic() + PATIENCE_S)
        with self._moved:
            while True:
                waiting = [n for n in self._hosts if n not in arrived and n not in self._troubles]
                progress(len(self._hosts) - len(waiting), len(self._hosts), waiting)
                left_s = patience - time.monotonic()
                if not waiting or left_s <= 0:
                    return
                self._moved.wait(min(left_s, 0.5))

    def _serve(self, name: str) -> None:
        try:
            report = self._talk(name)
        except (ReachError, WireError, TimeoutError) as error:
            self._arrive(self._troubles, name, str(error) or "gave no answer in time")
        else:
            self._arrive(self._reports, name, report)

    def _arrive(self, step: dict[str, _Arrived], name: str, value: _Arrived) -> None:
        with self._moved:
            step[name] = value
            self._moved.notify_all()

    def _talk(self, name: str) -> Ports:
        """Take one node through the three steps."""
        request = {
            "nonce": self._nonce,
            "name": name,
            "deadline_s": self._left_s(),
            "lease_s": LEASE_S,
            "master_port": self._plan.master_port if name == self._plan.master else None,
            "data_ports": DATA_PORTS if len(self._hosts) > 1 else 0,
        }
        talk = Leased(
            start_payload(
                self._connections[name], self._hosts[name], "ports", request, self._left_s()
            )
        )
        try:
            listening = _decode(self._hear(talk), _Listening)
            self._arrive(self._listening, name, listening)
            self._wait(self._may_try, talk)
            targets = self._targets(name)
            talk.send({"targets": targets})
            tried = _decode(self._hear(talk), _Tried)
            self._arrive(self._tried, name, tried)
            self._wait(self._may_finish, talk)
            talk.send({"finish": True})
            report = decode_ports(self._hear(talk), self._nonce)
            _refuse_unasked(report, targets)
            return report
        finally:
            talk.close()

    def _hear(self, talk: Leased) -> bytes:
        """Return its next answer; TimeoutError when the stage's time is up."""
        while time.monotonic() < self._ends:
            document = talk.hear(min(_TURN_S, self._left_s()))
            if document is not None:
                return document
        raise TimeoutError("gave no answer in time")

    def _wait(self, step: threading.Event, talk: Leased) -> None:
        """Wait until all may take the next step, so that meanwhile the node does not leave."""
        while time.monotonic() < self._ends and not step.wait(min(_TURN_S, self._left_s())):
            talk.renew()

    def _targets(self, name: str) -> list[dict[str, object]]:
        """List whom this node tries: the master's port, and its partners' data ports."""
        with self._moved:
            listening = dict(self._listening)
        master = self._plan.master
        targets: list[dict[str, object]] = []
        if name != master and master in listening and listening[master].master_bound:
            targets.append(self._target(master, self._plan.master_port, "master"))
        for partner in self._plan.partners.get(name, ()):
            if partner in listening:
                ports = listening[partner].listening
                targets += [self._target(partner, port, "data") for port in ports]
        return targets

    def _target(self, name: str, port: int, kind: str) -> dict[str, object]:
        return {"node": name, "address": self._hosts[name].address, "port": port, "kind": kind}

    def _left_s(self) -> float:
        return max(0.1, self._ends - time.monotonic())


def _refuse_unasked(report: Ports, targets: Sequence[Mapping[str, object]]) -> None:
    """Whoever tells of connections that it was not asked to try may want to blame their target."""
    asked = Counter((each["node"], each["port"], each["kind"]) for each in targets)
    told = Counter((each.target, each.port, each.kind) for each in report.attempts)
    if not told <= asked:
        raise WireError("its report tells of connections that it was not asked to try")


def _decode(document: bytes, kind: type[_Arrived]) -> _Arrived:
    try:
        return msgspec.json.decode(document, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"its answer to the port stage is unusable: {error}") from error


def cut_links(ports: Mapping[str, Ports]) -> frozenset[tuple[str, str]]:
    """(from, to) of every connection of the port stage that did not come about.

    An attempt that the node itself could not make says nothing of the way.
    """
    return frozenset(
        (source, one.target)
        for source, report in ports.items()
        for one in report.attempts
        if one.result not in ("ok", "error")
    )
