"""Of old nights what every page and plan needs stays; what their waves measured is put away.

A wave of sixteen nodes leaves megabytes, a night hundreds of them. Removed are only files that a
wave writes, in folders of our own that are named as a wave's, of sweeps that came to their end.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.report.files import open_folder
from preflight.report.runs import FINISHED, OURS
from preflight.sweeping.nights import read_sweep, sweeps_in
from preflight.sweeping.wave_process import SCREEN

if TYPE_CHECKING:
    from pathlib import Path

_WAVE = re.compile(r"wave-\d{3,6}(-\d{1,3})?")
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITTEN = OURS | {SCREEN}


def tidy_waves(folder: Path, keep: int) -> list[str]:
    """Put away the waves of all sweeps beside this one but the latest `keep`; 0 keeps all.

    Names the sweeps of which something went. What cannot be removed stays, and costs nothing.
    """
    if keep < 1:
        return []
    gone = []
    others = [each for each in sweeps_in(folder.parent) if each.name < folder.name]
    for old in others[keep - 1 :]:
        with suppress(OSError, UsageError):
            if (old / FINISHED).is_file() and read_sweep(old).finished and _put_away(old):
                gone.append(old.name)
    return gone


def _put_away(sweep: Path) -> bool:
    """Whether there was anything."""
    some = False
    with open_folder(sweep, make=False) as held:
        above = os.open(".", _FOLDER, dir_fd=held)
        try:
            with os.scandir(above) as entries:
                names = [entry.name for entry in entries if _WAVE.fullmatch(entry.name)]
            for name in names:
                with suppress(OSError):
                    some |= _remove(above, name)
        finally:
            os.close(above)
    return some


def _remove(above: int, name: str) -> bool:
    """Remove a wave's folder whole, or leave it whole where there is something else in it."""
    folder = os.open(name, _FOLDER, dir_fd=above)
    try:
        with os.scandir(folder) as entries:
            inside = [entry.name for entry in entries]
        ours = os.fstat(folder).st_uid == os.geteuid()
        if not ours or not all(_is_ours(folder, each) for each in inside):
            return False
        for each in inside:
            os.unlink(each, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=above)
    return True


def _is_ours(folder: int, name: str) -> bool:
    left = _TEMPORARY.fullmatch(name)
    regular = stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return regular and (left[1] if left else name) in _WRITTEN
