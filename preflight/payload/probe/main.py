"""The facts of a node in one answer; a section that cannot be read hides no other."""

from __future__ import annotations

import os
import sys
import time

import wire

from . import (
    extra,
    gpudirect,
    guard,
    host,
    kmsg,
    nccl_conf,
    network,
    nics,
    nvml,
    processes,
    resolve,
    smi,
    software,
)
from .text import LINE_LIMIT, TEXT_LIMIT, clean
from .users import Users, me

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Request = dict[str, Any]

MARGIN_S = 1.0
"""What is kept of the node's time for the last section and the answer itself."""


def run(
    request: Request,
    lines: Callable[[], Request | None],
    emit: Callable[[dict[str, Any]], None],
) -> None:
    """Emit one `Facts` document: preflight.facts.model, docs/wire.md."""
    del lines
    began = time.monotonic()
    until = began + float(request["deadline_s"]) - MARGIN_S
    root = str(request.get("sysfs", "/sys"))
    problems: list[str] = []
    facts = _identity(request["nonce"])  # first: its clock is read at `began`
    guard.clock.bound(until)
    asked_at, driver_s = guard.clock.now(), float(request["driver_deadline_s"])
    soon = min(until, asked_at + driver_s)
    asked = guard.spawn(nvml.survey, root)
    nics_asked = guard.spawn(nics.read, root)
    log_asked = kmsg.Asked(str(request.get("kmsg", kmsg.LOG)), request.get("kernel_log_since_s"))
    software_asked = guard.spawn(software.read, request.get("libraries") or [])
    network_asked = guard.spawn(network.read, root)
    direct_asked = guard.spawn(gpudirect.survey, root)
    names_asked = resolve.start(request.get("names") or [])
    source_asked = resolve.start_source(str(request.get("towards") or ""))
    machine = host.Machine(root, asked_at)
    conf_asked = nccl_conf.start(request)
    facts.update(_driver(asked, driver_s, problems))
    asks_smi = facts["driver"]["state"] == "answered" and not request.get("spare")
    drawing = smi.start() if asks_smi else None
    held = _held(facts["gpus"] or [])
    facts["processes"] = processes.read(held, until, problems)
    facts["nics"] = _section("nics", nics_asked, soon, problems)
    facts["kernel_log"] = log_asked.finish(min(until, asked_at + kmsg.PATIENCE_S), problems)
    facts["software"] = _section("software", software_asked, soon, problems)
    facts["network"] = _section("network", network_asked, soon, problems)
    facts["gpudirect"] = _section("gpudirect", direct_asked, soon, problems)
    _add_names(facts, resolve.finish(names_asked, asked_at, until))
    source = resolve.finish_source(source_asked, asked_at, until)
    if facts["network"] is not None:
        facts["network"]["source_address"] = source
    facts["nccl_conf"] = _section("nccl_conf", conf_asked, soon, problems)
    facts["topo_text"] = smi.finish(drawing, min(until, guard.clock.now() + driver_s), problems)
    facts["machine"] = machine.finish(soon, problems)
    # Last and alone: what a site adds can take time from nothing of ours.
    sections = request.get("sections") or []
    facts["extra"] = extra.read(sections, str(request["name"]), until, problems)
    facts["problems"] = [clean(problem, TEXT_LIMIT) for problem in problems[:256]]
    facts["seconds"] = round(time.monotonic() - began, 3)
    emit(facts)


def _identity(nonce: str) -> dict[str, Any]:
    """Who this node says it is, and what reads it."""
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    now_s = max(time.time(), up_s)  # the date of a dead battery: uptime is their difference
    system = os.uname()
    return {
        "wire": wire.VERSION,
        "nonce": nonce,
        "host": clean(system.nodename),
        "time_s": round(now_s, 3),
        "boot_s": round(max(0.0, now_s - up_s), 3),
        "user": clean(me(Users(patient=False))),
        "root": os.geteuid() == 0,
        "kernel": clean(system.release),
        "python": {
            "version": clean(sys.version.partition(" ")[0]),
            "executable": clean(sys.executable or "", LINE_LIMIT),
        },
    }


def _driver(asked: guard.Child, most_s: float, problems: list[str]) -> dict[str, Any]:
    """Return the sections that only the driver can fill; one that does not answer is `hung`.

    Of a call's time only what the reader waited for the driver counts: `guard.Waiting`.
    """
    answered = asked.listen(most_s=most_s)
    waiting, passed_s = asked.waiting, time.monotonic() - asked.waiting.began
    gone = asked.dismiss(kill=not answered)
    sections: dict[str, Any] = {"driver": {"state": "hung"}, "gpus": None, "gpu_pairs": None}
    if answered:
        try:
            sections = asked.value()
        except guard.BrokenError as error:
            sections["driver"] = {"state": "error", "error": nvml.OURS + str(error)}
        problems += sections.pop("problems", [])
    driver = sections["driver"]
    driver["seconds"] = round(waiting.seconds, 3)
    for took in ("init_s", "slowest_s"):
        if took in driver:
            driver[took] = min(driver[took], driver["seconds"])
    if not answered and waiting.seconds < most_s:
        driver["paused_s"] = round(passed_s - waiting.seconds, 3)
    if not gone:
        driver["survivor"] = processes.survivor(asked.pid, "preflight's driver query")
    return sections


def _section(name: str, asked: guard.Child, until: float, problems: list[str]) -> Any:
    """Return what a guarded section answered; None, and a line in `problems`, if it did not."""
    return guard.answer_of(name, asked, until, problems.append)


def _add_names(facts: dict[str, Any], resolved: list[dict[str, Any]]) -> None:
    """Put where names lead beside the interfaces; without those there is nothing to hold them to.

    The first is the host's own.
    """
    if facts["network"] is not None and resolved:
        facts["network"].update(own_name=resolved[0], names=resolved[1:])


def _held(gpus: list[dict[str, Any]]) -> dict[int, int | None]:
    """GPU memory by pid, over all GPUs; None where NVML hides the amount."""
    held: dict[int, int | None] = {}
    for gpu in gpus:
        for one in gpu["processes"] or []:
            before, more = held.get(one["pid"]), one["used_mib"]
            held[one["pid"]] = before if more is None else (before or 0) + more
    return held
