"""What every rank of a job that hangs is doing now: all nodes asked at once, in under 30 s.

For a fleet: `look(hosts, ways, nonce)` gives a `JobState`; a node that cannot be reached is in it,
with the sentence that says why. For this machine alone: `look_here(pids=(...))`. Both only read:
nothing is killed, and of the ranks only some at rest are paused for some ms, for their native
stacks (`native=False`: none). What they return is for `preflight.hang.diagnose.judge.diagnose`.
"""

from __future__ import annotations

import secrets
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from preflight.core.remote_command import ReachError
from preflight.errors import WireError
from preflight.facts.model import decode_look
from preflight.fleet.model import Host
from preflight.fleet.nodeset import sound_name
from preflight.hang.diagnose.model import JobState, NodeState
from preflight.transport.bundle import offer, start_payload
from preflight.transport.ways import Gate, TooSlowError, Ways, fan_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preflight.core.remote_command import Connection
    from preflight.facts.job import NodeLook
    from preflight.transport.payload_session import PayloadSession

LOOK_S = 3.0
"""Between the two looks: long enough to see progress in steps of a second."""

CONNECT_S = 8.0
NODE_S = 20.0
"""For one node's looks; a healthy one needs its `look_s` and a second or two."""

ALL_S = 28.0
"""For the fleet: the issue promises an answer in under 30 s."""

LIMIT = 48 << 20
"""Bytes of a node's answer: 512 ranks with stacks, and flight recorder dumps of 16 MiB."""

_LACKS = b'{"lacks":'


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of each node."""

    pids: Sequence[int] = ()
    """Only these, what is below them, and a rank's fellows; empty for all ranks of the node."""
    look_s: float = LOOK_S
    native: bool = True
    """Whether ranks at rest may be paused for some ms to have their native stacks."""
    own_spy: bool = True
    """Whether the node's own py-spy is taken before one that travels."""


class _Lacks(Struct, frozen=True):
    """A node without something that can travel."""

    lacks: str
    machine: str


def look(
    hosts: Sequence[Host],
    ways: Ways,
    nonce: str,
    *,
    wanted: Wanted | None = None,
    deadline_s: float = ALL_S,
    job: str = "",
    progress: Callable[[int, int, list[str]], None] = lambda *_: None,
) -> JobState:
    """Ask all nodes at the same time; every host has an entry in the result, in the same order.

    `job`: which of several on these nodes is meant. Never raises for an unhealthy node.
    """
    gate, asked = Gate(), wanted or Wanted()
    by_name = {host.name: host for host in hosts}
    ends = time.monotonic() + deadline_s

    def work(name: str) -> NodeState:
        return _one(by_name[name], ways, nonce, asked, gate=gate, ends=ends)

    answers = fan_out(list(by_name), work, deadline_s=deadline_s, at_most=None, progress=progress)
    return JobState(nodes=tuple(_state(name, one) for name, one in answers.items()), job=job)


def look_here(
    pids: Sequence[int] = (), *, look_s: float = LOOK_S, deadline_s: float = NODE_S, job: str = ""
) -> JobState:
    """Look at this machine: at all of its ranks, or at these processes and those beside them."""
    here = Host(name=_own_name(), address="127.0.0.1", transport="local", python=(sys.executable,))
    ways = Ways((here,))
    try:
        state = look(
            (here,), ways, secrets.token_hex(16), wanted=Wanted(pids=pids, look_s=look_s),
            deadline_s=deadline_s, job=job,
        )  # fmt: skip
        return replace(state, here=True)
    finally:
        ways.close()


def _own_name() -> str:
    import socket

    return sound_name(socket.gethostname(), "localhost")


def _one(
    host: Host, ways: Ways, nonce: str, wanted: Wanted, *, gate: Gate, ends: float
) -> NodeState:
    """Log in and look; every way it can fail is part of the result."""
    connection: Connection | None = None
    try:
        with gate.passage(_left_s(ends)):
            connection = ways.connect(host, min(CONNECT_S, _left_s(ends)))
        seen = _ask(connection, host, nonce, wanted, min(NODE_S, _left_s(ends)))
    except ReachError as error:
        return NodeState(node=host.name, sentence=error.sentence, advice=error.advice)
    except (WireError, TimeoutError) as error:
        return NodeState(
            node=host.name,
            sentence=str(error) or "no answer in time",
            advice="look at the node's load, and at processes in D state",
            late=connection is not None and isinstance(error, TimeoutError),
        )
    finally:
        if connection is not None:
            connection.close()
    return NodeState(node=host.name, look=seen)


def _ask(
    connection: Connection, host: Host, nonce: str, wanted: Wanted, timeout_s: float
) -> NodeLook:
    request = {
        "nonce": nonce,
        "name": host.name,
        "deadline_s": timeout_s,
        "look_s": min(wanted.look_s, timeout_s / 2),
        "pids": list(wanted.pids),
        "native": wanted.native,
        "own_spy": wanted.own_spy,
    }
    ends = time.monotonic() + timeout_s
    talk = start_payload(connection, host, "stacks", request, timeout_s, limit=LIMIT)
    try:
        document = talk.read(timeout_s + 2)
        if document.startswith(_LACKS):
            _give(talk, document)
            document = talk.read(_left_s(ends) + 2)
        return decode_look(document, nonce)
    finally:
        talk.close()


def _give(talk: PayloadSession, document: bytes) -> None:
    """Send what the node lacks, or say that we have none for it."""
    try:
        lacks = msgspec.json.decode(document, type=_Lacks)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"what it asks for is unreadable: {error}") from error
    for message in offer(lacks.machine):
        talk.send(message)


def _left_s(ends: float) -> float:
    return max(0.5, ends - time.monotonic())


def _state(name: str, answer: NodeState | Exception) -> NodeState:
    """A thread that was left behind at the deadline has no result of its own."""
    if isinstance(answer, NodeState):
        return answer
    return NodeState(
        node=name,
        sentence=(str(answer) or type(answer).__name__)[:300],
        advice="look at the node's load, at processes in D state, and at what its login shell does",
        late=isinstance(answer, TooSlowError),
    )
