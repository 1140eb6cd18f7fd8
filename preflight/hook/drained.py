"""The drain that the hook set on this node: what it does not remember, it never undoes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from preflight.errors import UsageError
from preflight.fleet.files import read_regular, refuse_others
from preflight.hook.model import Drained
from preflight.report.files import remove, write_atomically
from preflight.trust import who_may_change

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "drained.json"
_LARGEST = 64 << 10


def recall(folder: Path) -> Drained | None:
    """Read it back; None where there is none, or where another than root could have written it."""
    path = folder / NAME
    try:
        if os.geteuid() == 0 and who_may_change(path):
            return None
        return msgspec.json.decode(read_regular(path, _LARGEST), type=Drained)
    except (OSError, ValueError, RecursionError):
        return None


def remember(folder: Path, drained: Drained) -> str:
    """Write it down before Slurm is told; says what went wrong, "" if nothing did."""
    try:
        refuse_others(folder)
        write_atomically(folder / NAME, msgspec.json.encode(drained))
    except (OSError, UsageError) as error:
        why = getattr(error, "strerror", "") or str(error)
        return f"cannot write {folder / NAME} ({why}), so it will not be undone by itself"
    return ""


def forget(folder: Path) -> None:
    """Another drain, or none, took its place."""
    with suppress(OSError, UsageError):
        refuse_others(folder)
        remove(folder / NAME)
