"""What this lab host has: its GPUs, NICs, rates, costs and faults, from its scenario file.

The file is `scenarios/NODE.json` in the environment that runs (`sys.prefix`); each process reads it
anew, so a test may change it between two launches, and faults name their own moment.
`tests.lab.rehearsal.scenario` writes it and says what each key means.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any


def folder() -> Path:
    """Where scenarios, locks and marks of all hosts of this lab lie."""
    return Path(sys.prefix) / "scenarios"


def files() -> Path:
    """Where torch's files lie that tell of a build with CUDA."""
    return Path(sys.prefix) / "files" / os.uname().nodename


@cache
def scenario() -> dict[str, Any] | None:
    """Of this host; None for a host without GPUs."""
    try:
        text = (folder() / f"{os.uname().nodename}.json").read_text()
    except OSError:
        return None
    found: dict[str, Any] = json.loads(text)
    return found


os.register_at_fork(after_in_child=scenario.cache_clear)  # a forked child reads for itself


def known() -> dict[str, Any]:
    """The scenario of a host that has one."""
    found = scenario()
    assert found is not None
    return found


def torch_version() -> tuple[int, int]:
    """Of which torch the rules are imitated."""
    major, minor = known()["torch"].split(".")[:2]
    return int(major), int(minor)


def first_time(name: str) -> bool:
    """Whether no process of this host has asked for that name before: what happens only once."""
    try:
        os.close(os.open(folder() / f"{os.uname().nodename}.{name}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def visible_gpus() -> list[dict[str, Any]]:
    """The GPUs that CUDA shows, in its order.

    CUDA_VISIBLE_DEVICES names them by index or by the beginning of a UUID; the first wrong entry
    ends the list. Source: CUDA C++ Programming Guide, "CUDA Environment Variables". Without it, and
    with equal GPUs, CUDA_DEVICE_ORDER=FASTEST_FIRST is the order of PCI addresses, too.
    """
    gpus: list[dict[str, Any]] = sorted(known()["gpus"], key=lambda gpu: str(gpu["bus_id"]))
    spec = os.environ.get("CUDA_VISIBLE_DEVICES")
    if spec is None:
        return gpus
    found: list[dict[str, Any]] = []
    for word in (each.strip() for each in spec.split(",")):
        if word.isdigit() and int(word) < len(gpus):
            found.append(gpus[int(word)])
            continue
        matching = [gpu for gpu in gpus if word.startswith("GPU-") and gpu["uuid"].startswith(word)]
        if len(matching) != 1:
            break
        found += matching
    return found


def take(gpu: dict[str, Any]) -> int | None:
    """Hold a GPU for this process as CUDA's exclusive-process mode does; None if it is held."""
    path = folder() / f"{os.uname().nodename}.gpu-{gpu['slot']}.lock"
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
