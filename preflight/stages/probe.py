"""Stages `reach` and `facts`: one login and one round trip bring all of a node's facts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preflight.carried import modules
from preflight.errors import WireError
from preflight.facts.decode import decode_facts
from preflight.facts.node import Reach
from preflight.transport.bundle import start_payload
from preflight.transport.fanout import fan_out
from preflight.transport.protocol import Connection, Manned, ReachError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preflight.carried import Carried
    from preflight.facts.model import Facts
    from preflight.fleet.model import Host
    from preflight.transport.ways import Ways

CONNECT_S = 10.0
"""For name, TCP, host key and login together; a healthy node needs well under a second."""

DRIVER_S = 10.0
"""After which a driver that has not answered counts as hung (rivals wait 5 to 10 s)."""

PROBE_S = 25.0
"""For the whole probe: the driver's deadline, process and sysfs reading, a loaded node."""


@dataclass(frozen=True, slots=True)
class Reached:
    """One node's way in and what it said; the connection stays open for the next stages."""

    reach: Reach
    facts: Facts | None
    connection: Connection | None


def probe_fleet(
    hosts: Sequence[Host],
    ways: Ways,
    nonce: str,
    *,
    deadline_s: float,
    at_most: int,
    progress: Callable[[int, int, list[str]], None],
    sections: Sequence[Carried] = (),
    arrived: Callable[[str, Reached], None] = lambda _name, _reached: None,
) -> dict[str, Reached]:
    """Log in everywhere and ask for facts; every host has an entry in the result.

    `at_most` bounds how many nodes are set up at once; `deadline_s` ends the stage; `sections` are
    the site's own. `arrived` hears of each answer at once, in its own thread: an interrupt must
    not lose what is known.
    """
    by_name = {host.name: host for host in hosts}

    def work(name: str) -> Reached:
        reached = _probe(by_name[name], ways, nonce, deadline_s, sections)
        arrived(name, reached)
        return reached

    answers = fan_out(
        list(by_name),
        work,
        at_most=at_most,
        deadline_s=deadline_s,
        progress=progress,
    )
    return {name: _reached(by_name[name], ways, answer) for name, answer in answers.items()}


def _probe(
    host: Host, ways: Ways, nonce: str, deadline_s: float, sections: Sequence[Carried]
) -> Reached:
    """Log in and fetch one node's facts; every way it can fail is part of the result."""
    began = time.monotonic()
    connection: Connection | None = None
    try:
        connection = ways.connect(host, min(CONNECT_S, deadline_s))
        left_s = max(1.0, deadline_s - (time.monotonic() - began))
        facts = _ask(connection, host, nonce, min(PROBE_S, left_s), sections)
    except ReachError as error:
        reach = Reach(
            ways.way(host),
            error.step,
            error.sentence,
            error.advice,
            time.monotonic() - began,
            error.blame,
        )
    except (WireError, TimeoutError) as error:
        reach = Reach(
            ways.way(host),
            "answer",
            str(error) or "no answer in time",
            f"log in to {host.name} and run its Python by hand: "
            f"{' '.join(host.python)} -c 'print(1)'",
            time.monotonic() - began,
        )
    else:
        shortfall = connection.shortfall if isinstance(connection, Manned) else None
        reach = Reach(ways.way(host), seconds=time.monotonic() - began, shortfall=shortfall)
        return Reached(reach, facts, connection)
    if connection is not None:
        connection.close()
    return Reached(reach, None, None)


def _ask(
    connection: Connection,
    host: Host,
    nonce: str,
    timeout_s: float,
    sections: Sequence[Carried],
) -> Facts:
    beside = modules(sections)
    request = {
        "nonce": nonce,
        "name": host.name,
        "deadline_s": timeout_s,
        "driver_deadline_s": min(DRIVER_S, timeout_s / 2),
        "sections": [
            {"id": each.id, "module": module, "deadline_s": each.deadline_s}
            for each, (module, _) in zip(sections, beside, strict=True)
        ],
    }
    talk = start_payload(connection, host, "probe", request, timeout_s, beside=beside)
    try:
        talk.finish()
        return decode_facts(talk.read(timeout_s + 2), nonce)
    finally:
        talk.close()


def _reached(host: Host, ways: Ways, answer: Reached | Exception) -> Reached:
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
        ),
        None,
        None,
    )
