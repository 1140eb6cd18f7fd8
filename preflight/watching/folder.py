"""The folder that a watch leaves, or not: a healthy launch leaves nothing."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path

from preflight.trust import who_may_change
from preflight.watching.settings import FOLDERS, RECORDER_FOLDER

_MODE = 0o750
_AS_MANY = 100


def name() -> str:
    """What a folder made now is called, before somebody else's of that name."""
    host = os.uname().nodename.partition(".")[0]
    return f"watch-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{host}"


def make(base: Path) -> Path:
    """Make a new one there, named by the time and this host; OSError where that cannot be.

    Two nodes of one job start within a second, often in one shared folder. As root nobody else may
    be able to swap it: torch and NCCL write there by its name.
    """
    if os.geteuid() == 0 and (said := who_may_change(base)):
        raise PermissionError(errno.EPERM, said)
    stem = name()
    real = Path(os.path.realpath(base))
    real.mkdir(parents=True, exist_ok=True)
    for number in range(_AS_MANY):
        folder = real / (f"{stem}-{number + 1}" if number else stem)
        try:
            folder.mkdir(_MODE)
        except FileExistsError:
            continue
        for below in FOLDERS:
            (folder / below).mkdir(_MODE)
        return folder
    raise FileExistsError(f"there are {_AS_MANY} of {stem}")


def makes_pipes(folder: Path) -> bool:
    """Whether its file system has named pipes: torch ends a rank that cannot make its own."""
    pipe = folder / RECORDER_FOLDER / ".try"
    try:
        os.mkfifo(pipe)
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
        pipe.unlink()
    except OSError:
        return False
    return True


def remove(folder: Path) -> None:
    """Take it away; what cannot be removed stays."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def tidy(folder: Path) -> None:
    """Take away what says nothing: pipes, and folders in which nothing is."""
    for path in (folder / RECORDER_FOLDER).glob("*.pipe"):
        path.unlink(missing_ok=True)
    for place, _, _ in sorted(os.walk(folder), reverse=True):
        if place != str(folder):
            with suppress(OSError):
                Path(place).rmdir()
