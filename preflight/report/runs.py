"""The folder `preflight-runs`: the runs before this one, the link to the latest, how many are kept.

A run of ours is a folder of our own, named by its time, with nothing in it that we did not write.
Anything else in there is somebody's, and is neither read nor removed; no link is ever followed.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from preflight.fleet.nodeset import natural
from preflight.report.events import NAME as EVENTS
from preflight.report.events import Ended, read_events
from preflight.report.files import link_atomically, open_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from preflight.report.night import Night

RUNS = "preflight-runs"
LATEST = "latest"
KEEP = 30
"""Runs that are kept unless the operator says otherwise: a month of nights."""

NIGHTS = 30
"""Earlier runs that a page compares with."""

FINISHED = "report.json"
OURS = frozenset(
    (
        FINISHED,
        "ready.hosts",
        "measured.json",
        "report.html",
        "fabric.html",
        EVENTS,
    )
)
"""Every file that a run writes, or that earlier versions wrote."""

_STAMP = re.compile(r"\d{8}-\d{6}(-\d{1,2})?")
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}")
_TAIL = 4 << 20
"""Bytes at the end of a file of events that are read for its last line."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def is_run(path: Path) -> bool:
    """Whether a folder is named as one of ours in a folder of runs."""
    return bool(_STAMP.fullmatch(path.name))


def earlier(path: Path, most: int = NIGHTS) -> tuple[Night, ...]:
    """The runs beside this one that ended before it, oldest first; none where it stands alone."""
    if not is_run(path):
        return ()
    found: list[Night] = []
    with suppress(OSError), open_folder(path.parent, make=False) as above:
        before = [name for name in _stamps(above) if natural(name) < natural(path.name)]
        for name in reversed(before):
            if len(found) == most:
                break
            with suppress(OSError), _opened(above, name) as folder:
                night = _night(folder)
                if night is not None:
                    found.append(night)
    return tuple(reversed(found))


def point_at(path: Path) -> None:
    """Let `latest` lead to this run; a file or folder of that name is left as it is. OSError."""
    if is_run(path):
        link_atomically(path.parent / LATEST, path.name)


def tidy(path: Path, keep: int) -> list[str]:
    """Remove the oldest runs beside this one but for `keep`, itself counted; name what is gone.

    A run without a report is one that still goes on, or that was killed: it stays.
    """
    if not is_run(path) or keep < 1:
        return []
    gone: list[str] = []
    with suppress(OSError), open_folder(path.parent, make=False) as above:
        others = [name for name in _stamps(above) if name != path.name]
        whole = [name for name in others if _removable(above, name)]
        for name in whole[: max(0, len(whole) - (keep - 1))]:
            with suppress(OSError):
                if _removed(above, name):
                    gone.append(name)
    return gone


def _stamps(above: int) -> list[str]:
    """Names of runs in a folder, oldest first."""
    with _readable(above) as handle:
        return sorted((n for n in _names(handle) if _STAMP.fullmatch(n)), key=natural)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


@contextmanager
def _readable(folder: int) -> Iterator[int]:
    """A handle that can be listed, of a folder that is held by its path only."""
    handle = os.open(".", _FOLDER, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _opened(above: int, name: str) -> Iterator[int]:
    """Hold a run's folder open; OSError for a link, and for a folder of somebody else."""
    handle = os.open(name, _FOLDER, dir_fd=above)
    try:
        if os.fstat(handle).st_uid not in (os.geteuid(), 0):
            raise PermissionError(f"{name} belongs to somebody else")
        yield handle
    finally:
        os.close(handle)


def _night(folder: int) -> Night | None:
    handle = os.open(EVENTS, _FILE, dir_fd=folder)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            return None
        file.seek(max(0, found.st_size - _TAIL))
        lines = file.read(_TAIL).splitlines()
    events = read_events(lines[-1]) if lines else []
    return events[0].night if events and isinstance(events[0], Ended) else None


def _removable(above: int, name: str) -> bool:
    """Whether all that is in there was written by a run of ours that came to its end."""
    with suppress(OSError), _opened(above, name) as folder:
        return bool(_whole(folder))
    return False


def _whole(folder: int) -> list[str]:
    """The files of such a run, its report last; none where it is not one."""
    names = sorted(_names(folder), key=lambda one: one == FINISHED)
    regular = all(
        stat.S_ISREG(os.stat(n, dir_fd=folder, follow_symlinks=False).st_mode) for n in names
    )
    own = os.fstat(folder).st_uid == os.geteuid()
    ours = own and regular and FINISHED in names and all(map(_written_by_us, names))
    return names if ours else []


def _written_by_us(name: str) -> bool:
    left = _TEMPORARY.fullmatch(name)
    return (left[1] if left else name) in OURS


def _removed(above: int, name: str) -> bool:
    """Remove a run; False where something else bears its name by now."""
    with _opened(above, name) as folder:
        names = _whole(folder)
        for own in names:
            os.unlink(own, dir_fd=folder)
    if names:
        os.rmdir(name, dir_fd=above)
    return bool(names)
