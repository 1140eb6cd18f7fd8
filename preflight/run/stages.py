"""Stages `net`, `local` and `fabric`, in which all nodes work at once, each in its own session.

`net`: nodes bind the job's ports and connect to each other's. `local`: nodes load their devices.
`fabric`: one launch measures all pairs.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from preflight.burn.burn_in import BurnPlan, EventCollector
from preflight.core.remote_command import OUTPUT_LIMIT, Connection, ReachError
from preflight.errors import WireError
from preflight.fabric.agents import start_rank_agents
from preflight.fabric.launch import Hooks, sweep
from preflight.fabric.sweep_plan import SweepPlan, plan_to_catch
from preflight.facts.basics import wire_errors
from preflight.facts.burn import Alive, Burned, Ready, decode_burned
from preflight.facts.model import Facts, Ports, decode_document
from preflight.fleet.model import Host, Job, Port
from preflight.fleet.nodeset import fold
from preflight.transport.bundle import start_payload
from preflight.transport.payload_session import LEASE_S, LeasedSession, MessageSession
from preflight.transport.ways import RankConnections

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from preflight.fabric.samples import Sweep

    Progress = Callable[[int, int, list[str]], None]


SLOTS, MOST_SLOTS = 2, 16
"""Stand-in devices of a node that has no GPU, if no launch line gives its number of ranks."""

_TURN_S = 1.0
"""How often a lease is renewed while we wait for a node or for the others."""

_GRACE_S = 5.0
"""How much later a node's own deadline is than ours: a node that ended by its own clock would look
like one that went away."""
_LATE = "it had not finished when its time was up"
_NO_TORCH = "no node's Python has torch; name the job's Python with --preflight-python"
_CHECK_LOAD = "check its load and look for processes in D state, then run again"


class Nodes(NamedTuple):
    """The nodes that take part in a stage, and the time for it."""

    hosts: Sequence[Host]
    connections: Mapping[str, Connection]
    """By name."""
    nonce: str
    deadline_s: float


class _Stage(ABC):
    """One session per node, each in a thread: a node that hangs does not affect the others."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._hosts = {host.name: host for host in nodes.hosts}
        self._began = time.monotonic()
        self._ends = self._began + nodes.deadline_s
        self._changed = threading.Condition()

    def _begin(self) -> None:
        for name in self._hosts:
            threading.Thread(target=self._serve, args=(name,), daemon=True).start()

    def _start(
        self,
        entry: str,
        name: str,
        request: Mapping[str, object],
        left_s: float,
        environ: Mapping[str, str] | None = None,
    ) -> LeasedSession:
        """Start the payload's entry on a node, which ends by itself after `left_s`."""
        common = {
            "nonce": self._nodes.nonce, "name": name, "deadline_s": left_s, "lease_s": LEASE_S
        }  # fmt: skip
        connection, host = self._nodes.connections[name], self._hosts[name]
        return LeasedSession(
            start_payload(connection, host, entry, {**common, **request}, left_s, environ=environ)
        )

    @abstractmethod
    def _serve(self, name: str) -> None:
        """Serve one node in its own thread; record how that ended, whatever happens."""


class BurnStage(_Stage):
    """Every node loads its devices and reports its progress."""

    def __init__(self, nodes: Nodes, facts: Mapping[str, Facts], plan: BurnPlan, job: Job) -> None:
        super().__init__(nodes)
        self._facts = facts
        self._plan = msgspec.to_builtins(plan)
        self._job = job
        self._slots = min(MOST_SLOTS, job.nproc_per_node or SLOTS)
        self._collected = {name: EventCollector() for name in self._hosts}
        self._burned: dict[str, Burned] = {}
        self._sessions: dict[str, LeasedSession] = {}
        self._closing = False

    def run(self, progress: Progress) -> dict[str, Burned]:
        """Return every node's result; partial for nodes that are not done by the deadline."""
        self._begin()
        try:
            with self._changed:
                while waiting := [name for name in self._hosts if name not in self._burned]:
                    progress(*self._steps(), waiting)
                    if time.monotonic() > self._ends:
                        break
                    self._changed.wait(0.5)
            return self._final_results()
        finally:
            self._close()
            total = self._steps()[1]
            progress(total, total, [])

    def partial_results(self) -> dict[str, Burned]:
        """The results until an interrupt; missing ones count against no node."""
        with self._changed:
            late = {
                name: collected.result(trouble="the run was interrupted", stopped=True)
                for name, collected in self._collected.items()
                if name not in self._burned
            }
            return {**self._burned, **late}

    def _steps(self) -> tuple[int, int]:
        """How many phases are done, and how many there are, over all nodes."""
        done = total = 0
        for name, collected in self._collected.items():
            step = collected.step
            steps = step.of if step else 1
            total += steps
            done += steps if name in self._burned else step.done if step else 0
        return min(done, total - 1), total

    def _final_results(self) -> dict[str, Burned]:
        """Return all results. A late node is at fault if others are done, not if all are late."""
        with self._changed:
            results = dict(self._burned)
            finished = [name for name, burn in results.items() if burn.done]
            longest_s = max((results[name].seconds for name in finished), default=0.0)
            for name in self._hosts.keys() - results.keys():
                collected = self._collected[name]
                where = f" (in {collected.step.phase})" if collected.step else ""
                late = f"{_LATE}{where}"
                if finished:
                    late += f"; {fold(finished)} took {longest_s:.0f} s"
                results[name] = collected.result(
                    trouble=late, advice=_CHECK_LOAD, stopped=not finished, seconds=self._seconds()
                )
        if results and all(collected.no_torch for collected in self._collected.values()):
            return {n: replace(burn, trouble="", left_out=_NO_TORCH) for n, burn in results.items()}
        return {name: results[name] for name in self._hosts}

    def _serve(self, name: str) -> None:
        trouble = advice = ""
        try:
            self._run_session(name)
        except ReachError as error:
            trouble, advice = error.sentence, error.advice
        except WireError as error:
            trouble, advice = str(error), _CHECK_LOAD
        except TimeoutError:
            return  # `_final_results` decides what that means
        with self._changed:
            if self._closing:
                return  # we have closed the session: however it ended, the node is not to blame
            self._burned[name] = self._collected[name].result(
                trouble=trouble, advice=advice, seconds=self._seconds()
            )
            self._changed.notify_all()

    def _run_session(self, name: str) -> None:
        host, collected = self._hosts[name], self._collected[name]
        facts = self._facts.get(name)
        left_s = max(1.0, self._ends - time.monotonic()) + _GRACE_S
        has_gpus = bool(host.expected.gpus or (facts is not None and facts.gpus))
        request = {"plan": self._plan, "slots": self._slots, "gpus": has_gpus}
        environ = self._job.measured_in(name)
        session = self._start("burn", name, request, left_s, environ)
        with self._changed:
            self._sessions[name] = session
            ended = self._closing
        with closing(session):
            while not (ended or collected.done or collected.busy or collected.no_torch):
                if time.monotonic() > self._ends:
                    raise TimeoutError
                document = session.receive(_TURN_S)
                if document is not None:
                    self._handle(collected, session, document)

    def _handle(self, collected: EventCollector, session: LeasedSession, document: bytes) -> None:
        event = decode_burned(document)
        if isinstance(event, Alive):
            return
        if isinstance(event, Ready):
            session.watch()  # not before: while its Python imports torch it may be silent
        with self._changed:
            collected.add(event)
            self._changed.notify_all()

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _close(self) -> None:
        """Close all open sessions in parallel; a thread that ends closes its own."""
        with self._changed:
            self._closing = True
            unfinished = self._sessions.keys() - self._burned.keys()
            sessions = [self._sessions[name] for name in unfinished]
        for session in sessions:
            threading.Thread(target=session.close, daemon=True).start()


READY_S, READY_SHARE, READY_MOST_S = 45.0, 3, 300.0
"""Time for the nodes' Pythons to import torch: that share of the given time, within bounds."""


def may_have_rails(connection: Connection, facts: Facts | None) -> bool:
    """Whether a node can have two rails or more: ranks of the job, or GPUs that answered."""
    gpus = facts.gpus if facts is not None else None
    ranks = len(connection.ranks) if isinstance(connection, RankConnections) else 0
    return max(ranks, len(gpus or ())) > 1


def sweep_fleet(
    nodes: Nodes, plan: SweepPlan, job: Job, hooks: Hooks, catch_rate: float | None = None
) -> Sweep:
    """Measure the planned pairs; pairs of nodes that are left out are not run, with the reason.

    `catch_rate`: events per second of load that the soak must catch with 99 %; None for a short
    soak. `job`: measure in this job's environment, if it is known.
    """
    hosts, connections, nonce, deadline_s = nodes
    plan = replace(plan, ready_s=min(READY_MOST_S, max(READY_S, deadline_s / READY_SHARE)))
    if catch_rate is not None:
        plan = plan_to_catch(plan, catch_rate)
    limit = OUTPUT_LIMIT + plan.most_bytes

    def start(host: Host, request: Mapping[str, object]) -> MessageSession:
        connection = connections[host.name]
        if isinstance(connection, RankConnections):
            return start_rank_agents(connection, host, request, deadline_s, limit=limit)
        environ = job.measured_in(host.name)
        return start_payload(
            connection, host, "sweep", request, deadline_s, limit=limit, environ=environ
        )

    return sweep(plan, hosts, start, nonce=nonce, deadline_s=deadline_s, hooks=hooks)


DATA_PORTS = 2
"""Random ephemeral ports per node, each tried by the scheduled partners only."""

PATIENCE_S = 10.0
"""How long the nodes that are ready wait for the rest before they go on without them."""

_Step = TypeVar("_Step")


class _Listening(Struct, frozen=True):
    listening: Annotated[tuple[Port, ...], Meta(max_length=16)]
    master_bound: bool


class _Tried(Struct, frozen=True):
    tried: int


class PortStage(_Stage):
    """All nodes step together: they listen, then connect, then prove the port free again.

    A node that fails at any step is reported with the reason, and the others go on.
    """

    def __init__(
        self, nodes: Nodes, master: Host, master_port: int, partners: Mapping[str, Sequence[str]]
    ) -> None:
        """`master`: the node of the master port. `partners`: those of each node in the sweep."""
        super().__init__(nodes)
        self._master = master.name
        self._master_port = master_port
        self._partners = partners
        self._listening: dict[str, _Listening] = {}
        self._tried: dict[str, _Tried] = {}
        self._reports: dict[str, Ports] = {}
        self._troubles: dict[str, str] = {}
        self._may_try = threading.Event()
        self._may_finish = threading.Event()

    def run(self, progress: Progress) -> tuple[dict[str, Ports], dict[str, str]]:
        """Return the nodes' reports, and why the others have none."""
        self._begin()
        try:
            self._wait_for_all(self._listening, progress)
            self._may_try.set()
            self._wait_for_all(self._tried, progress)
            self._may_finish.set()
            self._wait_for_all(self._reports, progress)
        finally:
            self._may_try.set()
            self._may_finish.set()
        with self._changed:
            silent = self._hosts.keys() - self._reports.keys() - self._troubles.keys()
            late = dict.fromkeys(sorted(silent), "did not answer in time")
            return dict(self._reports), {**self._troubles, **late}

    def _wait_for_all(self, step: Mapping[str, object], progress: Progress) -> None:
        """Wait until every node has reached a step or failed, at most PATIENCE_S."""
        end = min(self._ends, time.monotonic() + PATIENCE_S)
        with self._changed:
            while True:
                waiting = [n for n in self._hosts if n not in step and n not in self._troubles]
                progress(len(self._hosts) - len(waiting), len(self._hosts), waiting)
                left_s = end - time.monotonic()
                if not waiting or left_s <= 0:
                    return
                self._changed.wait(min(left_s, 0.5))

    def _serve(self, name: str) -> None:
        try:
            report = self._run_session(name)
        except (ReachError, WireError, TimeoutError) as error:
            self._record(self._troubles, name, str(error) or "did not answer in time")
        else:
            self._record(self._reports, name, report)

    def _record(self, step: dict[str, _Step], name: str, value: _Step) -> None:
        with self._changed:
            step[name] = value
            self._changed.notify_all()

    def _run_session(self, name: str) -> Ports:
        """Take one node through the three steps."""
        request = {
            "master_port": self._master_port if name == self._master else None,
            "data_ports": DATA_PORTS if len(self._hosts) > 1 else 0,
        }
        with closing(self._start("ports", name, request, self._left_s())) as talk:
            self._record(self._listening, name, _decode(self._next_answer(talk), _Listening))
            self._wait_for_step(self._may_try, talk)
            targets = self._targets(name)
            talk.send({"targets": targets})
            self._record(self._tried, name, _decode(self._next_answer(talk), _Tried))
            self._wait_for_step(self._may_finish, talk)
            talk.send({"finish": True})
            report = decode_document(Ports, self._next_answer(talk), self._nodes.nonce)
            _refuse_unasked(report, targets)
            return report

    def _next_answer(self, session: LeasedSession) -> bytes:
        """Return its next answer; TimeoutError when the stage's time is up."""
        while time.monotonic() < self._ends:
            document = session.receive(min(_TURN_S, self._left_s()))
            if document is not None:
                return document
        raise TimeoutError("did not answer in time")

    def _wait_for_step(self, step: threading.Event, session: LeasedSession) -> None:
        """Wait for the next step, and renew the lease so that the node does not exit meanwhile."""
        while time.monotonic() < self._ends and not step.wait(min(_TURN_S, self._left_s())):
            session.renew()

    def _targets(self, name: str) -> list[dict[str, object]]:
        """The ports to which this node connects: the master's, and its partners' data ports."""
        with self._changed:
            listening = dict(self._listening)
        master = self._master
        targets: list[dict[str, object]] = []
        if name != master and master in listening and listening[master].master_bound:
            targets.append(self._target(master, self._master_port, "master"))
        for partner in self._partners.get(name, ()):
            if partner in listening:
                ports = listening[partner].listening
                targets += [self._target(partner, port, "data") for port in ports]
        return targets

    def _target(self, name: str, port: int, kind: str) -> dict[str, object]:
        return {"node": name, "address": self._hosts[name].address, "port": port, "kind": kind}

    def _left_s(self) -> float:
        return max(0.1, self._ends - time.monotonic())


def _refuse_unasked(report: Ports, targets: Sequence[Mapping[str, object]]) -> None:
    """Refuse a report on connections that were not requested: it could blame their target."""
    requests = Counter((target["node"], target["port"], target["kind"]) for target in targets)
    reported = Counter((attempt.target, attempt.port, attempt.kind) for attempt in report.attempts)
    if not reported <= requests:
        raise WireError("its report lists connections that it was not asked to try")


def _decode(document: bytes, kind: type[_Step]) -> _Step:
    with wire_errors("its answer to the port stage is unusable"):
        return msgspec.json.decode(document, type=kind)


def cut_links(ports: Mapping[str, Ports]) -> frozenset[tuple[str, str]]:
    """(from, to) of every connection of the port stage that failed.

    An attempt that the node itself could not make says nothing about the network.
    """
    return frozenset(
        (source, attempt.target)
        for source, report in ports.items()
        for attempt in report.attempts
        if attempt.result not in ("ok", "error")
    )
