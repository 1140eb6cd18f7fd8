"""Collects a node's facts in one answer; a section that fails does not affect the others."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import re
import sys
import time
from typing import Any, Sequence

import children
from start import Emit, Message, Read

from . import guard, host, kernel_log, network, nvml, nvml_calls, processes, rdma, software
from .node_files import LINE_LIMIT, TEXT_LIMIT, clean
from .procfs import identity, login_name

ANSWER_LIMIT = 60 << 10
"""Most bytes of JSON in the answer of one of a site's sections."""

DEEPEST = 16
"""Most levels of lists and objects in it: a decoder that fails at it would lose all facts."""

_WHOLE_NUMBERS = 2**63
"""Decoders differ on larger ones."""


class Exited(Exception):  # noqa: N818 (the class name is part of the message)
    """The section called sys.exit."""


class WrongError(Exception):
    """An answer that is no plain JSON, with the reason."""


def collect(
    sections: Sequence[dict[str, Any]], node: str, until: float, problems: list[str]
) -> dict[str, dict[str, Any]]:
    """Run all of a site's sections in parallel; return an `Extra` document by section id."""
    if not sections:
        return {}
    with contextlib.suppress(Exception):  # processes that a section leaves running end with us
        children.adopt_orphans()
    began = guard.clock.now()
    reads = [(row, guard.spawn(_collect, row, node, most=ANSWER_LIMIT)) for row in sections]
    answers = {}
    for section, child in reads:
        deadline_s = float(section["deadline_s"])
        answer = _answer(child, min(until, began + deadline_s), deadline_s)
        if answer["error"]:
            problems.append("{}: {}".format(section["id"], answer["error"]))
        answers[section["id"]] = {**answer, "seconds": round(guard.clock.now() - began, 3)}
    return answers


def _collect(section: dict[str, Any], node: str) -> Any:
    """In the child: run the site's code and return only its answer."""
    request = {"id": section["id"], "name": node, "deadline_s": section["deadline_s"]}
    if section["module"][:13] != "site_section_":
        raise WrongError("a request may name no module of the node's own")
    try:
        answer = __import__(section["module"]).collect(request)
        json.dumps(answer)  # here its error can still be reported
        return answer  # noqa: TRY300 (an else would not see sys.exit)
    except SystemExit as error:
        raise Exited(f"sys.exit({error.code!r:.80})") from None


def _answer(child: guard.Child, until: float, deadline_s: float) -> dict[str, Any]:
    """Wait for one child, end it and its processes, and check its output."""
    answered = child.listen(until)
    has_ended = child.dismiss(kill=True)
    error = ""
    data = None
    if len(child.output) > ANSWER_LIMIT:
        error = f"its answer exceeds {ANSWER_LIMIT >> 10} KiB"
    elif not answered:
        error = f"no answer in {deadline_s:g} s"
    else:
        try:
            data = child.value()
            _refuse_odd(data)
        except (guard.BrokenError, WrongError) as wrong:
            error, data = str(wrong), None
        except (ValueError, TypeError, LookupError, RecursionError):
            error, data = "its answer is no plain JSON", None
    if not has_ended:
        error += f"; its process {child.pid} cannot be killed"
    return {"data": data, "error": clean(error, TEXT_LIMIT)}


def _refuse_odd(data: Any) -> None:
    """Raise WrongError for what json.loads accepts and the controller's decoder does not."""
    level, depth = [data], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise WrongError(f"its answer is nested deeper than {DEEPEST} levels")
        next_level: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                next_level += [*value, *value.values()]
            elif isinstance(value, list):
                next_level += value
            elif isinstance(value, str):
                if re.search("[\ud800-\udfff]", value):
                    raise WrongError("its answer holds half a surrogate pair")
            elif isinstance(value, (int, float)) and _is_too_large(value):
                raise WrongError("its answer holds a number beyond 64 bits, or none at all (NaN)")
        level = next_level


def _is_too_large(number: float) -> bool:
    return not math.isfinite(number) or (isinstance(number, int) and abs(number) >= _WHOLE_NUMBERS)


MARGIN_S = 1.0
"""Time that is reserved for the last section and for sending the answer."""


def run(request: Message, lines: Read, emit: Emit) -> None:
    """Emit one `Facts` document: preflight.facts.model, docs/internals/wire.md."""
    del lines
    gc.disable()  # there is no garbage here, and its marks would make each child copy memory
    began = time.monotonic()
    until = began + float(request["deadline_s"]) - MARGIN_S
    root = str(request.get("sysfs", "/sys"))
    problems: list[str] = []
    stuck: set[int] = set()
    facts = _identity(request["nonce"])  # first: its clock is read at `began`
    guard.clock.bound(until)
    start_s, driver_s = guard.clock.now(), float(request["driver_deadline_s"])
    soon = min(until, start_s + driver_s)
    calls = guard.Calls()
    # First those that wait between two looks.
    sections = {"nics": guard.spawn(rdma.read, root)}
    machine = host.Machine(root, stuck)
    query = guard.spawn(nvml.survey, root, calls.begin, calls=calls)
    sections.update(
        software=guard.spawn(software.read, request.get("libraries") or []),
        network=guard.spawn(network.read, root),
        gpudirect=guard.spawn(rdma.survey, root),
        nccl_conf=guard.spawn(
            software.read_nccl_conf,
            str(request.get("etc", "/etc")),
            str(request.get("nccl_conf_file", "")),
        ),
    )
    log_readers = kernel_log.Readers(request)

    def answer(name: str) -> Any:
        return guard.answer_of(name, sections[name], soon, problems.append)

    lookups = network.start(request.get("names") or [])
    peer = request.get("towards")
    source_child = guard.spawn(network.source_address, str(peer)) if peer else None
    facts.update(_driver(query, calls, driver_s, problems))
    asks_smi = facts["driver"]["state"] == "answered" and not request.get("spare")
    matrix = nvml.start() if asks_smi else None
    gpu_mib = _gpu_mib_by_pid(facts["gpus"] or [])
    facts["processes"] = processes.read(gpu_mib, until, problems, stuck)
    facts.update((name, answer(name)) for name in ("nics", "software", "network", "gpudirect"))
    resolved = network.finish(lookups, until)
    source = None
    if source_child is not None:
        soonest = min(until, start_s + network.PATIENCE_S)
        source = guard.answer_of("source address", source_child, soonest, lambda _: None)
    if facts["network"] is not None:
        facts["network"]["source_address"] = clean(source or "")
        if resolved:  # the first is the host's own
            facts["network"].update(own_name=resolved[0], names=resolved[1:])
    facts["nccl_conf"] = answer("nccl_conf")
    facts["topo_text"] = nvml.finish(matrix, min(until, guard.clock.now() + driver_s), problems)
    facts["machine"] = machine.finish(soon, until, problems)
    facts["kernel_log"] = log_readers.finish(min(until, start_s + kernel_log.PATIENCE_S), problems)
    # Last and alone, so that a site's sections take no time from ours.
    facts["extra"] = collect(request.get("sections") or [], str(request["name"]), until, problems)
    facts["problems"] = [clean(problem, TEXT_LIMIT) for problem in problems[:256]]
    facts["seconds"] = round(time.monotonic() - began, 3)
    emit(facts)


def _identity(nonce: str) -> dict[str, Any]:
    """The node's name, login, kernel and Python."""
    return {
        **identity(nonce),
        "user": clean(login_name()),
        "root": os.geteuid() == 0,
        "kernel": clean(os.uname().release),
        "python": {
            "version": clean(sys.version.partition(" ")[0]),
            "executable": clean(sys.executable or "", LINE_LIMIT),
        },
    }


def _driver(
    query: guard.Child, calls: guard.Calls, most_s: float, problems: list[str]
) -> dict[str, Any]:
    """Return the sections that need the driver; a driver that does not answer is `hung`.

    A call's time counts only while the reader waited for the driver: `guard.Calls`.
    """
    answered = query.listen(most_s=most_s)
    waiting, passed_s = query.waiting, time.monotonic() - query.waiting.began
    has_ended = query.dismiss(kill=not answered)
    sections: dict[str, Any] = {"driver": {"state": "hung"}, "gpus": None, "gpu_pairs": None}
    if answered:
        try:
            sections = query.value()
        except guard.BrokenError as error:
            sections["driver"] = {"state": "error", "error": nvml_calls.OWN_ERROR + str(error)}
        problems += sections.pop("problems", [])
    driver = sections["driver"]
    driver["seconds"] = round(waiting.seconds, 3)
    if "opening" in sections:
        driver["init_s"] = round(calls.waited_s(*sections.pop("opening")), 3)
        timed = ((calls.waited_s(*times), call) for *times, call in sections.pop("timed"))
        slowest_s, driver["slowest_call"] = max(timed, default=(0.0, ""))
        driver["slowest_s"] = round(slowest_s, 3)
    if not answered and waiting.seconds < most_s:
        driver["paused_s"] = round(passed_s - waiting.seconds, 3)
    if not has_ended:
        driver["survivor"] = processes.survivor(query.pid, "preflight's driver query")
    return sections


def _gpu_mib_by_pid(gpus: list[dict[str, Any]]) -> dict[int, int | None]:
    """GPU memory by pid, over all GPUs; None where NVML hides the amount."""
    gpu_mib: dict[int, int | None] = {}
    for gpu in gpus:
        for process in gpu["processes"] or []:
            known_mib, used_mib = gpu_mib.get(process["pid"]), process["used_mib"]
            gpu_mib[process["pid"]] = known_mib if used_mib is None else (known_mib or 0) + used_mib
    return gpu_mib
