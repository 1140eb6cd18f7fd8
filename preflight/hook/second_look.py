"""A driver is hung, or wedged, at the second look in a row: the first may be a bad moment.

The look before is kept in state_dir, where only root may write.
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
from preflight.hook.config import read_trusted
from preflight.hook.model import Moment, now

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
"""The checks whose fault a second look must see, and what keeps the first one that did."""

IN_A_ROW_S: Final = 3600.0
"""Looks that are further apart are not in a row."""

APART_S: Final = 30.0
"""Looks that are closer may have seen one bad moment, as prologs that start side by side."""

_NOT_LOADED: Final = ("OSError: ", "NVML Shared Library Not Found")
"""The loader's words, and pynvml's for those: the library may only just be being exchanged."""

_FULL_S: Final = DRIVER_S - 1
_LARGEST: Final = 4096


def is_late(driver: Driver) -> bool:
    """Whether it gave no answer in less time than makes it hung."""
    return driver.state == "hung" and driver.seconds < _FULL_S


def is_hung(driver: Driver) -> bool | None:
    """Whether a look saw a hung driver; None where it was too short, or paused, to prove it.

    One that answers "Timeout" or "In use by another client" is as silent as a hung one.
    """
    passing = driver.error.endswith(MAY_PASS) or driver.error.startswith(_NOT_LOADED)
    if driver.state == "error" and passing:
        return True
    if driver.state != "hung":
        return False
    return None if is_late(driver) or driver.paused_s else True


def seen_before(folder: Path) -> frozenset[str]:
    """Return the checks whose fault an earlier look of this boot saw, and no look since missed."""
    ages = {check_id: _age_s(folder / name) for check_id, name in FILES.items()}
    return frozenset(check_id for check_id, age_s in ages.items() if age_s and age_s >= APART_S)


def keep_look(folder: Path, saw: Mapping[str, bool]) -> None:
    """Write down what the next look must know; OSError or UsageError where that is not safe.

    `saw`: whether this look saw a check's fault. Of a check that is not in it nothing changes: the
    look could not tell.
    """
    for check_id, bad in saw.items():
        path = folder / FILES[check_id]
        if bad:
            refuse_others(folder)
            age_s, here = _age_s(path), now()
            if age_s is None or age_s >= APART_S:
                # After a second look each one counts, however soon.
                up_s = here.up_s - (APART_S if age_s else 0)
                write_atomically(path, msgspec.json.encode(Moment(here.boot_id, up_s)))
        elif os.path.lexists(path):
            refuse_others(folder)
            with suppress(FileNotFoundError):  # another hook that saw the same was quicker
                remove(path)


def _age_s(path: Path) -> float | None:
    """Seconds since the look that it tells of; None where that is in a row with none of now."""
    try:
        then = msgspec.json.decode(read_trusted(path, _LARGEST), type=Moment)
    except (UsageError, ValueError, RecursionError):
        return None
    age_s = then.age_s()
    return age_s if age_s is not None and 0 <= age_s <= IN_A_ROW_S else None
