"""A driver that gives no answer is hung at the second look in a row: the first may be a bad moment.

The look before is kept in state_dir, where only root may write.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from preflight.errors import UsageError
from preflight.fleet.files import refuse_others
from preflight.hook.boot_clock import Moment, now
from preflight.hook.config import read_trusted
from preflight.report.files import remove, write_atomically
from preflight.stages.probe import DRIVER_S

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.facts.model import Driver

NAME: Final = "hung.json"
IN_A_ROW_S: Final = 3600.0
"""Looks that are further apart are not in a row."""

_FULL_S: Final = DRIVER_S - 1
_LARGEST: Final = 4096


def is_late(driver: Driver) -> bool:
    """Whether it gave no answer in less time than makes it hung."""
    return driver.state == "hung" and driver.seconds < _FULL_S


def seen_before(folder: Path) -> bool:
    """Whether an earlier look of this boot saw a hung driver, and none since saw it answer."""
    try:
        then = msgspec.json.decode(read_trusted(folder / NAME, _LARGEST), type=Moment)
    except (UsageError, ValueError, RecursionError):
        return False
    age_s = then.age_s()
    return age_s is not None and 0 <= age_s <= IN_A_ROW_S


def keep_look(folder: Path, driver: Driver) -> None:
    """Write down what the next look must know; OSError or UsageError where that is not safe.

    A look that was too short, or paused, changes nothing: it saw no answer, and proves no hang.
    """
    if driver.state != "hung":
        if os.path.lexists(folder / NAME):
            refuse_others(folder)
            with suppress(FileNotFoundError):  # another hook that saw the same was quicker
                remove(folder / NAME)
    elif not is_late(driver) and not driver.paused_s:
        refuse_others(folder)
        write_atomically(folder / NAME, msgspec.json.encode(now()))
