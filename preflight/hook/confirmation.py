"""A fault that can pass by itself counts only if two runs of the hook in a row find it.

The previous look is saved in state_dir, where only root may write.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from preflight.checks.gpu.readings import MAY_PASS
from preflight.core.files import refuse_others, remove, write_atomically
from preflight.errors import UsageError
from preflight.facts.model import DRIVER_S
from preflight.hook.hook_values import Moment, now, read_trusted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from preflight.facts.model import Driver

HUNG: Final = "host.driver_hung"
SLOW: Final = "gpu.driver_slow"
FILES: Final = {
    HUNG: "hung.json",
    SLOW: "slow.json",
    "gpu.count": "count.json",
    "gpu.readings": "readings.json",
}
"""The checks whose fault two looks must see, and the file that records the first of these looks."""

IN_A_ROW_S: Final = 3600.0
"""Looks that are further apart do not count as consecutive."""

APART_S: Final = 30.0
"""Looks that are closer may see the same bad moment, as two prologs that start together."""

_NOT_LOADED: Final = ("OSError: ", "NVML Shared Library Not Found")
"""Errors of the loader and of pynvml, which also appear while the driver is being replaced."""

_FULL_S: Final = DRIVER_S - 1
_LARGEST: Final = 4096


def is_late(driver: Driver) -> bool:
    """Whether the driver has not answered, but the time was too short to call it hung."""
    return driver.state == "hung" and driver.seconds < _FULL_S


def is_hung(driver: Driver) -> bool | None:
    """Whether this look saw a hung driver; None where it was too short, or interrupted by a pause.

    A driver that returns "Timeout" or "In use by another client" counts as hung.
    """
    passing = driver.error.endswith(MAY_PASS) or driver.error.startswith(_NOT_LOADED)
    if driver.state == "error" and passing:
        return True
    if driver.state != "hung":
        return False
    return None if is_late(driver) or driver.paused_s else True


def load_faults(folder: Path) -> frozenset[str]:
    """Return the checks whose fault each look saw, from an earlier one of this boot on."""
    ages = {check_id: _age_s(folder / name) for check_id, name in FILES.items()}
    return frozenset(check_id for check_id, age_s in ages.items() if age_s and age_s >= APART_S)


def save_look(folder: Path, saw: Mapping[str, bool]) -> None:
    """Record this look for the next one; OSError or UsageError where that is not safe.

    `saw`: whether this look saw a check's fault. The record of a check that is not in it stays: its
    state is unknown.
    """
    for check_id, bad in saw.items():
        path = folder / FILES[check_id]
        if bad:
            refuse_others(folder)
            age_s, here = _age_s(path), now()
            if age_s is None or age_s >= APART_S:
                # After a second look each later one counts, however soon.
                up_s = here.up_s - (APART_S if age_s else 0)
                write_atomically(path, msgspec.json.encode(Moment(here.boot_id, up_s)))
        elif os.path.lexists(path):
            refuse_others(folder)
            with suppress(FileNotFoundError):  # another hook that saw the same was quicker
                remove(path)


def _age_s(path: Path) -> float | None:
    """Seconds since the recorded look; None without one, or where it is too old to count."""
    try:
        then = msgspec.json.decode(read_trusted(path, _LARGEST), type=Moment)
    except (UsageError, ValueError, RecursionError):
        return None
    age_s = then.age_s()
    return age_s if age_s is not None and 0 <= age_s <= IN_A_ROW_S else None
