"""Reads what every rank of a hanging job does now, on all nodes at once, in under 30 s.

For a fleet: `look(hosts, ways, nonce)` returns a `JobState`; it also contains the nodes that cannot
be reached, with the reason. For this machine alone: `look_here(pids=(...))`. Both only read: they
kill nothing, and pause only some ranks at rest, for some ms, to read their native stacks. Pass the
result to `preflight.hang.diagnose.diagnosis.diagnose`.
"""

from __future__ import annotations

import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from preflight.core.remote_command import Connection, ReachError
from preflight.errors import WireError
from preflight.facts.job import NodeLook, RasLook
from preflight.facts.model import decode_document
from preflight.fleet.model import Host
from preflight.fleet.nodeset import valid_host_name
from preflight.hang.diagnose.job_ranks import jobs_of
from preflight.hang.diagnose.job_state import JobState, NodeState
from preflight.transport.bundle import pyspy_messages, start_payload
from preflight.transport.ways import Gate, TooSlowError, Ways, fan_out

RasPolicy = Literal["auto", "always", "never"]

LOOK_S = 3.0
"""Seconds between the two looks: enough to see progress in steps of a second."""

CONNECT_S = 8.0
NODE_S, START_S = 20.0, 4.0
"""Limit for one node's looks, and the part of it that a loaded node may need to start and to send;
a healthy node needs `look_s` and a second or two."""

ALL_S = 28.0
"""Limit for the fleet: the documented time of an answer is under 30 s."""

RAS_S, RAS_LEAST_S, MOST_ASKED = 10.0, 3.0, 3
"""Limit for one rank's RAS report, the least time worth a question, and most ranks to try."""

RAS_LIMIT = 16 << 20
ENDED = ("zombie", "gone", "stopped", "traced", "disk")
"""States in which a rank's RAS thread cannot answer, or may not."""

LIMIT = 48 << 20
"""Bytes of a node's answer: 512 ranks with stacks, and flight recorder dumps of 16 MiB."""

_LACKS = b'{"lacks":'


@dataclass(frozen=True, slots=True)
class LookRequest:
    """The request to each node."""

    pids: Sequence[int] = ()
    """These processes, their children, and other ranks of the same job; empty for all ranks."""
    look_s: float = LOOK_S
    ras: RasPolicy = "auto"
    """Whether to ask NCCL's RAS service: `auto` not if its version may crash when asked."""


class _Lacks(Struct, frozen=True):
    """A node asks for a file that this machine can send."""

    machine: str


def look(
    hosts: Sequence[Host],
    ways: Ways,
    nonce: str,
    *,
    wanted: LookRequest | None = None,
    deadline_s: float = ALL_S,
    job: str = "",
    progress: Callable[[int, int, list[str]], None] = lambda *_: None,
) -> JobState:
    """Look at all nodes at the same time; the result has every host, in the same order.

    `job`: the job, if these nodes run several. Never raises for a node that is not ready.
    """
    gate, request = Gate(), wanted or LookRequest()
    by_name = {host.name: host for host in hosts}
    ends = time.monotonic() + deadline_s

    def work(name: str) -> NodeState:
        return _look_at(by_name[name], ways, nonce, request, gate=gate, ends=ends)

    answers = fan_out(list(by_name), work, deadline_s=deadline_s, at_most=None, progress=progress)
    state = JobState(nodes=tuple(_state(name, answer) for name, answer in answers.items()), job=job)
    if request.ras == "never":
        return state
    always = request.ras == "always"
    return replace(state, ras=_ask_ras(state, by_name, ways, nonce, always=always, ends=ends))


def look_here(
    pids: Sequence[int] = (), *, look_s: float = LOOK_S, job: str = "", ras: RasPolicy = "auto"
) -> JobState:
    """Look at this machine: at all of its ranks, or at these processes and their fellow ranks."""
    name = valid_host_name(socket.gethostname(), "localhost")
    here = Host(name=name, address="127.0.0.1", transport="local", python=(sys.executable,))
    request = LookRequest(pids=pids, look_s=look_s, ras=ras)
    with closing(Ways((here,))) as ways:
        state = look((here,), ways, secrets.token_hex(16), wanted=request, job=job)
    return replace(state, here=True, narrowed=bool(pids))


def _look_at(
    host: Host, ways: Ways, nonce: str, request: LookRequest, *, gate: Gate, ends: float
) -> NodeState:
    """Log in and look at one node; every failure is part of the result."""
    connection: Connection | None = None
    try:
        with gate.passage(_left_s(ends)):
            connection = ways.connect(host, min(CONNECT_S, _left_s(ends)))
        answer = _ask(connection, host, nonce, request, min(NODE_S, _left_s(ends)))
    except ReachError as error:
        late = connection is not None
        return NodeState(node=host.name, sentence=error.sentence, advice=error.advice, late=late)
    except (WireError, TimeoutError) as error:
        return NodeState(
            node=host.name,
            sentence=str(error) or "no answer in time",
            advice="check the node's load, and processes in D state",
            late=connection is not None,
        )
    finally:
        if connection is not None:
            connection.close()
    return NodeState(node=host.name, look=answer)


def _ask(
    connection: Connection, host: Host, nonce: str, options: LookRequest, timeout_s: float
) -> NodeLook:
    request = {
        "nonce": nonce,
        "name": host.name,
        "deadline_s": max(timeout_s - START_S, timeout_s / 2),
        "look_s": min(options.look_s, timeout_s / 2),
        "pids": list(options.pids),
    }
    ends = time.monotonic() + timeout_s
    started = start_payload(connection, host, "stacks", request, timeout_s, limit=LIMIT)
    with closing(started) as talk:
        document = talk.read(timeout_s + 2)
        if document.startswith(_LACKS):
            for message in pyspy_messages(_lacking_machine(document)):
                talk.send(message)
            document = talk.read(_left_s(ends) + 2)
        return decode_document(NodeLook, document, nonce)


def _lacking_machine(document: bytes) -> str:
    """The kind of machine for which the node lacks a file."""
    try:
        return msgspec.json.decode(document, type=_Lacks).machine
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"its request for a file is unreadable: {error}") from error


def _ask_ras(
    state: JobState, hosts: Mapping[str, Host], ways: Ways, nonce: str, *, always: bool, ends: float
) -> RasLook | None:
    """Ask one rank for the whole job, others only if it does not answer; None without a service."""
    answer: RasLook | None = None
    for node, pid, address in _services(state)[:MOST_ASKED]:
        left_s = min(RAS_S, ends - time.monotonic() - 1.0)
        if left_s < RAS_LEAST_S:
            break
        question = {"address": address, "pid": pid, "always": always}
        request = {"nonce": nonce, "name": node, "deadline_s": left_s, "ras": question}
        try:
            with closing(ways.connect(hosts[node], left_s / 2)) as connection:
                started = start_payload(
                    connection, hosts[node], "stacks", request, left_s, limit=RAS_LIMIT
                )
                with closing(started) as talk:
                    answer = decode_document(RasLook, talk.read(left_s), nonce)
        except (ReachError, WireError, TimeoutError):
            continue
        if answer.content or not answer.why.startswith("RAS did not answer"):
            break
    return answer


def _services(state: JobState) -> list[tuple[str, int, str]]:
    """(node, pid, address) of one rank of each node, live ones first; 0: no rank is known."""
    jobs = jobs_of(state)
    job = jobs[0] if len(jobs) == 1 else ""
    rows = []
    for node, look in state.looks.items():
        own = [rank for rank in look.ranks if rank.ras and rank.job == job]
        if own:
            live = min(own, key=lambda rank: (rank.state in ENDED, rank.rank or 0))
            rows.append((live.state in ENDED, node, live.pid, live.ras))
        elif not jobs and look.ras:
            rows.append((False, node, look.ras_pid, look.ras))
    return [(node, pid, address) for _, node, pid, address in sorted(rows, key=lambda row: row[0])]


def _left_s(ends: float) -> float:
    return max(0.5, ends - time.monotonic())


def _state(name: str, answer: NodeState | Exception) -> NodeState:
    """The answer of a node, or a state made from its exception, such as a passed deadline."""
    if isinstance(answer, NodeState):
        return answer
    return NodeState(
        node=name,
        sentence=(str(answer) or type(answer).__name__)[:300],
        advice="check the node's load, processes in D state, and its login shell",
        late=isinstance(answer, TooSlowError),
    )
