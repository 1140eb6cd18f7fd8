"""Sweeps that are on disk: the one to go on with, and the nights that plans add to."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from preflight.errors import UsageError
from preflight.fleet.files import read_regular
from preflight.sweeping.state import LARGEST, NAME, Name, Stand, Sweep
from preflight.sweeping.waves import Night
from preflight.trust import who_may_change

if TYPE_CHECKING:
    from pathlib import Path

ANEW = "leave --resume out to begin anew"
"""How a refused sweep.json is told to whoever can only go on with it."""

NIGHTS = 64
"""Former sweeps that are read to plan the next one."""


class Former(Struct, frozen=True, kw_only=True):
    """A night that is over."""

    waves: Night
    """Who was looked at, and with whom."""
    whole: Night = ()
    """Of these, the waves of which every pair was measured."""


def read_sweep(folder: Path) -> Sweep:
    """Read a sweep's folder; UsageError if there is no sweep in it, or a damaged one.

    What root would be told to run by a file that somebody else may change is refused.
    """
    path = folder / NAME
    if os.geteuid() == 0 and (said := who_may_change(path)):
        raise UsageError(f"root would go on as {path} says, and {said}; {ANEW}")
    try:
        return msgspec.json.decode(read_regular(path, LARGEST), type=Sweep)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read the sweep {path}: {reason}; {ANEW}") from error


def latest(into: Path) -> tuple[Path, Sweep] | None:
    """The sweep that began last, if there is one; UsageError if it cannot be read."""
    folders = sweeps_in(into)
    return (folders[0], read_sweep(folders[0])) if folders else None


def former_nights(into: Path, *, but: str = "") -> tuple[Former, ...]:
    """Who was together in former nights, the latest first; damaged files are passed over.

    `but`: the id of the sweep that goes on now.
    """
    found: list[Former] = []
    for folder in sweeps_in(into)[:NIGHTS]:
        try:
            content = read_regular(folder / NAME, LARGEST)
            night = msgspec.json.decode(content, type=_Night)
        except (OSError, ValueError, RecursionError):
            continue
        if night.sweep != but and any(wave.stand == "done" for wave in night.waves):
            found.append(night.former())
    return tuple(found)


def new_folder(into: Path, began_s: float) -> Path:
    """The folder of a new sweep; names sort by time."""
    stamp = datetime.fromtimestamp(began_s, UTC).strftime("%Y%m%d-%H%M%S")
    names = (stamp, *(f"{stamp}-{number}" for number in range(2, 100)))
    return next((into / name for name in names if not (into / name).exists()), into / stamp)


def sweeps_in(into: Path) -> list[Path]:
    """The folders of all sweeps, the latest first; a link is none."""
    try:
        held = [path.parent for path in into.glob(f"*/{NAME}") if not path.parent.is_symlink()]
    except OSError:
        return []
    return sorted(held, key=lambda path: path.name, reverse=True)


class _OfNight(Struct, frozen=True):
    nodes: tuple[Name, ...]
    stand: Stand = "waiting"
    whole: bool = False


class _Night(Struct, frozen=True):
    """Of the file of another night, perhaps of another version: what a plan needs."""

    sweep: str = ""
    waves: tuple[_OfNight, ...] = ()

    def former(self) -> Former:
        return Former(
            waves=tuple(wave.nodes for wave in self.waves if wave.stand == "done"),
            whole=tuple(w.nodes for w in self.waves if w.stand == "done" and w.whole),
        )
