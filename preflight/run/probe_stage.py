"""Stages `reach` and `facts`: one login and one round trip bring all of a node's facts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from preflight.core.remote_command import Connection, ReachError
from preflight.errors import WireError
from preflight.facts.model import DRIVER_S, decode_facts
from preflight.facts.node import Clock, Reach
from preflight.run.site_sections import modules
from preflight.transport.bundle import start_payload
from preflight.transport.ways import RankConnections, fan_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preflight.facts.model import Facts
    from preflight.fleet.model import Host, Job
    from preflight.run.site_sections import Carried
    from preflight.transport.bundle import Beside
    from preflight.transport.ways import Ways

CONNECT_S = 10.0
"""For name, TCP, host key and login together; a healthy node needs well under a second."""

PROBE_S = 25.0
"""For the whole probe: the driver's deadline, process and sysfs reading, a loaded node."""


FAIR_S = 6.0
"""Chosen: a healthy node answers in one or two seconds, and under heavy load within this; that it
did not in less, for want of a longer budget, is not held against it."""

_SLACK_S = 0.3
"""A command is told to end a little before its time."""


@dataclass(frozen=True, slots=True)
class Reached:
    """One node's way in and what it said; the connection stays open for the next stages."""

    reach: Reach
    facts: Facts | None
    connection: Connection | None


class _Turn:
    """What a node is given for one step, and whether that was too little to hold against it."""

    def __init__(self, whole_s: float, left_s: float) -> None:
        self.given_s = min(whole_s, left_s)
        self._short = left_s < FAIR_S
        self._ends = time.monotonic() + self.given_s

    @property
    def was_cut(self) -> bool:
        """Whether it failed because the run ended, and not by itself before."""
        return self._short and time.monotonic() > self._ends - _SLACK_S


def probe_fleet(
    hosts: Sequence[Host],
    ways: Ways,
    nonce: str,
    *,
    deadline_s: float,
    at_most: int,
    progress: Callable[[int, int, list[str]], None],
    sections: Sequence[Carried] = (),
    kernel_log_since_s: float | None = None,
    job: Job | None = None,
    names: Sequence[str] = (),
    arrived: Callable[[str, Reached], None] = lambda _name, _reached: None,
) -> dict[str, Reached]:
    """Log in everywhere and ask for facts; every host has an entry in the result.

    `at_most` bounds how many nodes are set up at once; `deadline_s` ends the stage; `sections` are
    the site's own; `kernel_log_since_s` is how far back the kernel log counts; `job` says where its
    loader looks; `names` are those of its master, to be looked up on every node. `arrived` hears of
    each answer at once, in its own thread: an interrupt must not lose what is known.
    """
    by_name = {host.name: host for host in hosts}
    beside = modules(sections)
    asked_of_all = {
        "nonce": nonce,
        "sections": [
            {"id": each.id, "module": module, "deadline_s": each.deadline_s}
            for each, (module, _) in zip(sections, beside, strict=True)
        ],
        "kernel_log_since_s": kernel_log_since_s,
        "names": list(names),
    }

    def work(name: str) -> Reached:
        request = {
            **asked_of_all,
            "name": name,
            "libraries": list(job.libraries(name)) if job else [],
            "nccl_conf_file": job.nccl_conf_file(name) if job else "",
            "towards": next((host.address for host in hosts if host.name != name), ""),
        }
        reached = _probe(by_name[name], ways, request, beside, deadline_s)
        arrived(name, reached)
        return reached

    answers = fan_out(
        list(by_name),
        work,
        at_most=at_most,
        deadline_s=deadline_s,
        progress=progress,
    )
    return {
        name: _reached(by_name[name], ways, answer, given_s=deadline_s)
        for name, answer in answers.items()
    }


def _probe(
    host: Host, ways: Ways, request: dict[str, Any], beside: Beside, deadline_s: float
) -> Reached:
    """Log in and fetch one node's facts; every way it can fail is part of the result."""
    began = time.monotonic()
    connection: Connection | None = None
    turn = _Turn(CONNECT_S, deadline_s)
    try:
        connection = ways.connect(host, turn.given_s)
        turn = _Turn(PROBE_S, max(1.0, deadline_s - (time.monotonic() - began)))
        facts, clock = _ask(connection, host, request, beside, turn.given_s)
    except (ReachError, WireError, TimeoutError) as error:
        failed = error if isinstance(error, ReachError) else _no_answer(host, error)
        reach = Reach(
            ways.way(host),
            failed.step,
            failed.sentence,
            failed.advice,
            time.monotonic() - began,
            failed.blame,
            out_of_time=turn.was_cut,
        )
    else:
        shortfall = connection.shortfall if isinstance(connection, RankConnections) else None
        reach = Reach(
            ways.way(host), seconds=time.monotonic() - began, shortfall=shortfall, clock=clock
        )
        return Reached(reach, facts, connection)
    if connection is not None:
        connection.close()
    return Reached(reach, None, None)


def _no_answer(host: Host, error: Exception) -> ReachError:
    by_hand = f"log in to {host.name} and run its Python by hand: {' '.join(host.python)}"
    return ReachError("answer", str(error) or "no answer in time", f"{by_hand} -c 'print(1)'")


def _ask(
    connection: Connection, host: Host, request: dict[str, Any], beside: Beside, timeout_s: float
) -> tuple[Facts, Clock]:
    deadlines = {"deadline_s": timeout_s, "driver_deadline_s": min(DRIVER_S, timeout_s / 2)}
    request = {**request, **deadlines}
    asked_at_s, began = time.time(), time.monotonic()
    talk = start_payload(connection, host, "probe", request, timeout_s, beside=beside)
    try:
        talk.finish()
        document = talk.read(timeout_s + 2)
        round_trip_s = time.monotonic() - began
        facts = decode_facts(document, request["nonce"])
    finally:
        talk.close()
    return facts, clock_of(facts, asked_at_s, round_trip_s)


def clock_of(facts: Facts, asked_at_s: float, round_trip_s: float) -> Clock:
    """Place the moment of `time_s` in the round trip: it is before all that the probe then did."""
    within_s = max(0.0, round_trip_s - facts.seconds)
    return Clock(facts.time_s - (asked_at_s + within_s / 2), within_s / 2)


def _reached(host: Host, ways: Ways, answer: Reached | Exception, *, given_s: float) -> Reached:
    """A thread that was left behind at the deadline has no result of its own."""
    if isinstance(answer, Reached):
        return answer
    sentence = str(answer) or type(answer).__name__
    return Reached(
        Reach(
            ways.way(host),
            "answer",
            sentence[:300],
            "look at the node's load, at processes in D state, and at what its login shell does",
            given_s,
            out_of_time=given_s < FAIR_S,
        ),
        None,
        None,
    )
