"""Two looks at a job that may hang, seconds apart: where its ranks stand, and what moved."""

from __future__ import annotations

import os
import time

import wire
from probe import guard, kmsg, processes
from probe.text import TEXT_LIMIT, clean
from probe.users import Users

from . import dumps, finding, gpu_look
from .instant import Instant
from .patience import Patience
from .standing import Standing, readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Told = dict[str, Any]

LOOK_S = 3.0
MARGIN_S = 1.0
"""What is kept of the node's time for the answer itself."""

FIND_S, USERS_S, GPUS_S, DUMPS_S = 6.0, 1.0, 3.0, 3.0


def run(request: Told, lines: Callable[..., Told | None], emit: Callable[[Told], None]) -> None:
    """Emit one `NodeLook` document: preflight.facts.look_model, docs/wire.md."""
    began = time.monotonic()
    patience = Patience(began + float(request["deadline_s"]) - MARGIN_S)
    look_s = max(0.1, float(request.get("look_s", LOOK_S)))
    sysfs = str(request.get("sysfs", "/sys"))
    document = _identity(request["nonce"])
    log = kmsg.Asked(str(request.get("kmsg", kmsg.LOG)), request.get("kernel_log_since_s"))
    gpus_asked = guard.spawn(gpu_look.read, began + look_s)
    found = _find(request, patience)
    ranks, launchers = found["ranks"], found["launchers"]
    dumps_asked = guard.spawn(dumps.read, [_dumped(one) for one in ranks if one["dumps"]])
    standing = Standing(patience, own=bool(request.get("own_spy", True)))
    before = Instant(patience, ranks, sysfs)
    pythons = [one for one in (*ranks, *launchers) if one["python"]]
    standing.prepare(pythons, lines, emit)
    standing.read(readable(ranks, before.alive))
    of_launchers = standing.read_once(one["pid"] for one in launchers if one["python"])
    standing.sample(ranks, before.at + look_s)
    patience.sleep_until(before.at + look_s)
    after = Instant(patience, ranks, sysfs)
    standing.read_again()
    document["gpus"] = _gpus(patience.hear("GPUs", gpus_asked, GPUS_S), ranks, patience)
    rows = [after.row(one, before) for one in ranks]
    if request.get("native", True):
        standing.read_native(rows)
    dumped = patience.hear("flight recorder", dumps_asked, DUMPS_S) or {}
    for one, row in zip(ranks, rows):  # noqa: B905 (Python 3.8)
        standing.add(one, row)
        row["dump"] = dumped.get(str(one["pid"]))
    standing.close()
    document.update(
        ranks=rows,
        launchers=[_launcher(one, of_launchers.get(one["pid"])) for one in launchers],
        hidden=found["hidden"],
        ports=after.ports(before),
        log=log.finish(patience.within(kmsg.PATIENCE_S), patience.problems),
    )
    document["problems"] = [clean(each, TEXT_LIMIT) for each in patience.problems[:64]]
    document["seconds"] = round(time.monotonic() - began, 3)
    emit(document)


def _identity(nonce: str) -> Told:
    now_s = time.time()
    boot_s = max(0.0, now_s - time.clock_gettime(time.CLOCK_BOOTTIME))
    return {
        "wire": wire.VERSION,
        "nonce": nonce,
        "host": clean(os.uname().nodename),
        "time_s": round(now_s, 3),
        "boot_s": round(boot_s, 3),
        "cores": min(65535, os.cpu_count() or 1),
        "load": round(os.getloadavg()[0], 2),
    }


def _find(request: Told, patience: Patience) -> Told:
    wanted = [pid for pid in request.get("pids") or [] if isinstance(pid, int)]
    until = patience.within(FIND_S)
    found = processes.patiently(finding.find, (os.getpid(), wanted), until, patience.problems)
    if found is None:
        return {"ranks": [], "launchers": [], "hidden": 0}
    for pid in found["absent"]:
        patience.complain(f"process {pid}: there is none")
    _name_users(found["ranks"], patience)
    return found


def _name_users(ranks: list[Told], patience: Patience) -> None:
    """Ask the directory for the users that /etc/passwd does not know, if it answers soon."""
    unknown = {one["uid"] for one in ranks if one["user"].isdigit()}
    if unknown:
        named = patience.hear("users", guard.spawn(_names, sorted(unknown)), USERS_S) or {}
        for one in ranks:
            one["user"] = named.get(str(one["uid"]), one["user"])


def _names(uids: list[int]) -> dict[str, str]:
    users = Users(patient=True)
    return {str(uid): clean(users.name(uid)) for uid in uids}


def _dumped(one: Told) -> Told:
    """What the reader of dumps needs to know of a rank."""
    began_s = time.time() - float(one["age_s"])
    return {"pid": one["pid"], "uid": one["uid"], "paths": one["dumps"], "began_s": began_s}


def _gpus(told: Told | None, ranks: list[Told], patience: Patience) -> list[Told] | None:
    """Return the GPUs, and note to each rank those that it holds memory on."""
    gpus: list[Told] | None = told["gpus"] if told else None
    for problem in told["problems"] if told else []:
        patience.complain(problem)
    for one in ranks:
        one["gpus"] = [gpu["uuid"] for gpu in gpus or [] if one["pid"] in gpu["pids"]]
    return gpus


def _launcher(one: Told, stacks: Told | None) -> Told:
    names = ("pid", "job", "kind", "ranks", "children")
    told = {name: one[name] for name in names if one.get(name) is not None}
    return {**told, "stacks": stacks}
