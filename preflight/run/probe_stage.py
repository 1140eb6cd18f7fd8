"""Stages `reach` and `facts`: one login and one round trip fetch all of a node's facts."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from preflight.core.remote_command import Connection, ReachError
from preflight.errors import WireError
from preflight.facts.model import DRIVER_S, Facts, decode_document
from preflight.facts.node import Clock, Reach
from preflight.run.site_sections import LoadedSection, modules
from preflight.transport.bundle import SiteCode, pack_ahead, start_payload
from preflight.transport.ways import RankConnections, Ways, fan_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from preflight.fleet.model import Host, Job

CONNECT_S = 10.0
"""Time for name, TCP, host key and login together; a healthy node needs well under a second."""

PROBE_S = 25.0
"""Time for the whole probe: the driver's deadline, process and sysfs reading, a loaded node."""


FAIR_S = 6.0
"""Chosen: a healthy node answers in one or two seconds, and within 6 s under heavy load. If the
budget leaves a node less time, a missing answer does not count against it."""

_EPOCH_S = time.time() - time.monotonic()
"""The date here is read once: set meanwhile, it would be another one for each node."""

_SLACK_S = 0.3
"""A command's own deadline is a little earlier than ours."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How one node was reached, and its facts; the connection stays open for the next stages."""

    reach: Reach
    facts: Facts | None = None
    connection: Connection | None = None


class _StepTime:
    """A node's time for one step, and whether that was too short to count against the node."""

    def __init__(self, whole_s: float, left_s: float) -> None:
        self.given_s = min(whole_s, left_s)
        self._short = left_s < FAIR_S
        self._ends = time.monotonic() + self.given_s

    @property
    def was_cut(self) -> bool:
        """Whether the step failed because the run's time was over."""
        return self._short and time.monotonic() > self._ends - _SLACK_S


def probe_fleet(
    hosts: Sequence[Host],
    ways: Ways,
    nonce: str,
    *,
    deadline_s: float,
    at_most: int,
    progress: Callable[[int, int, list[str]], None],
    sections: Sequence[LoadedSection] = (),
    kernel_log_since_s: float | None = None,
    job: Job | None = None,
    names: Sequence[str] = (),
    on_result: Callable[[str, ProbeResult], None] = lambda _name, _result: None,
) -> dict[str, ProbeResult]:
    """Log in to every node and fetch its facts; every host has an entry in the result.

    `at_most` bounds how many nodes are set up at once; `deadline_s` ends the stage; `sections` are
    the site's own; `kernel_log_since_s` is how far back the kernel log counts; `job` has the job's
    library paths; `names` are those of its master, to be resolved on every node. `on_result` is
    called with each answer at once, in that node's thread: an interrupt must not lose it.
    """
    by_name = {host.name: host for host in hosts}
    site_modules = modules(sections)
    common = {
        "nonce": nonce,
        "sections": [
            {"id": section.id, "module": module, "deadline_s": section.deadline_s}
            for section, (module, _) in zip(sections, site_modules, strict=True)
        ],
        "kernel_log_since_s": kernel_log_since_s,
        "names": list(names),
    }

    def probe(name: str) -> ProbeResult:
        request = {
            **common,
            "name": name,
            "libraries": list(job.libraries(name)) if job else [],
            "nccl_conf_file": job.nccl_conf_file(name) if job else "",
            "towards": next((host.address for host in hosts if host.name != name), ""),
        }
        result = _probe(by_name[name], ways, request, site_modules, deadline_s)
        on_result(name, result)
        return result

    if any(host.transport in ("ssh", "paramiko", "openssh") for host in hosts):
        pack_ahead("probe", site_modules)
    answers = fan_out(by_name, probe, at_most=at_most, deadline_s=deadline_s, progress=progress)
    return {
        name: answer
        if isinstance(answer, ProbeResult)
        else _unfinished(by_name[name], ways, answer, deadline_s)
        for name, answer in answers.items()
    }


def _probe(
    host: Host, ways: Ways, request: dict[str, Any], site_modules: SiteCode, deadline_s: float
) -> ProbeResult:
    """Log in and fetch one node's facts; the result also holds any failure."""
    began = time.monotonic()
    connection: Connection | None = None
    step = _StepTime(CONNECT_S, deadline_s)
    try:
        connection = ways.connect(host, step.given_s)
        step = _StepTime(PROBE_S, max(1.0, deadline_s - (time.monotonic() - began)))
        facts, clock = _ask(connection, host, request, site_modules, step.given_s)
    except (ReachError, WireError, TimeoutError) as error:
        failed = error if isinstance(error, ReachError) else _no_answer(host, error)
        reach = Reach(
            ways.way(host), failed.step, failed.sentence, failed.advice,
            time.monotonic() - began, failed.blame, out_of_time=step.was_cut,
        )  # fmt: skip
        if connection is not None:
            connection.close()
        return ProbeResult(reach)
    shortfall = connection.shortfall if isinstance(connection, RankConnections) else None
    seconds = time.monotonic() - began
    reach = Reach(ways.way(host), seconds=seconds, shortfall=shortfall, clock=clock)
    return ProbeResult(reach, facts, connection)


def _no_answer(host: Host, error: Exception) -> ReachError:
    by_hand = f"log in to {host.name} and run its Python by hand: {' '.join(host.python)}"
    return ReachError("answer", str(error) or "no answer in time", f"{by_hand} -c 'print(1)'")


def _ask(
    connection: Connection, host: Host, request: dict[str, Any], code: SiteCode, timeout_s: float
) -> tuple[Facts, Clock]:
    deadlines = {"deadline_s": timeout_s, "driver_deadline_s": min(DRIVER_S, timeout_s / 2)}
    request = {**request, **deadlines}
    began = time.monotonic()
    asked_at_s = _EPOCH_S + began
    session = start_payload(connection, host, "probe", request, timeout_s, modules=code)
    with closing(session) as payload:
        payload.finish()
        document = payload.read(timeout_s + 2)
        round_trip_s = time.monotonic() - began
        facts = decode_document(Facts, document, request["nonce"])
    return facts, clock_of(facts, asked_at_s, round_trip_s)


def clock_of(facts: Facts, asked_at_s: float, round_trip_s: float) -> Clock:
    """Estimate a node's clock offset: the probe reads `time_s` first, then does all its work."""
    within_s = max(0.0, round_trip_s - facts.seconds)
    return Clock(facts.time_s - (asked_at_s + within_s / 2), within_s / 2)


def _unfinished(host: Host, ways: Ways, error: Exception, given_s: float) -> ProbeResult:
    """The result of a node whose thread did not end by the deadline, or broke."""
    sentence = (str(error) or type(error).__name__)[:300]
    advice = "look at the node's load, at processes in D state, and at what its login shell does"
    late = given_s < FAIR_S
    return ProbeResult(Reach(ways.way(host), "answer", sentence, advice, given_s, out_of_time=late))
