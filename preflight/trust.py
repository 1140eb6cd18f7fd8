"""Who could change a file behind our back: root must not run what somebody else may write."""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_LINKS = 40
"""The kernel's own limit on symbolic links in one path (MAXSYMLINKS)."""


def who_may_change(path: Path, *, and_slurm: bool = False) -> str:
    """Say who but root could change a file, or swap anything on the way to it; empty if nobody.

    `and_slurm`: the user `slurm` may, who starts programs as root on every node anyway.
    A folder that all may write to is harmless on the way if it is sticky, as /tmp is: what root
    owns in there stays. What is not there cannot be changed. Access lists show in the group's bits.
    """
    try:
        trusted = {0, pwd.getpwnam("slurm").pw_uid} if and_slurm else {0}
    except KeyError:
        trusted = {0}
    try:
        for place, found, is_last in _way_to(path):
            if found.st_uid not in trusted:
                return f"{place} belongs to {_user(found.st_uid)}"
            if stat.S_ISLNK(found.st_mode) or (found.st_mode & stat.S_ISVTX and not is_last):
                continue
            if found.st_mode & stat.S_IWOTH:
                return f"everybody may write to {place}"
            if found.st_mode & stat.S_IWGRP and found.st_gid != 0:
                return f"its group may write to {place}"
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} cannot be looked at ({error.strerror})"
    return ""


def who_may_plant(path: Path) -> str:
    """Say as `who_may_change` who could change a file of somebody else's.

    A file of preflight's own installation, or of its checkout, is none: whoever may write there
    (the owner of a folder that a container mounts) has his code run by this very process already.
    """
    package = Path(__file__).resolve().parent
    checkout = package.parent if (package.parent / "checks").is_dir() else package
    if path.resolve().is_relative_to(checkout) and who_may_change(package / "__init__.py"):
        return ""
    return who_may_change(path)


def strange_link(path: Path) -> str:
    """Name a symbolic link on the way that neither root nor we have made; empty if there is none.

    Somebody who may write to a folder above can plant one to have us write elsewhere.
    """
    try:
        for place, found, _ in _way_to(path):
            if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
                return f"{place} is a symbolic link of {_user(found.st_uid)}"
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} cannot be looked at ({error.strerror})"
    return ""


def _way_to(path: Path) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """Every folder, link and file that is passed, and whether it is the last one."""
    todo = deque(path.absolute().parts[1:])
    here, links = Path("/"), 0
    yield here, here.lstat(), not todo
    while todo:
        part = todo.popleft()
        if part == "..":
            here = here.parent
            continue
        place = here / part
        found = place.lstat()
        yield place, found, not todo
        if not stat.S_ISLNK(found.st_mode):
            here = place
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = place.readlink()
        here = Path("/") if target.is_absolute() else here
        todo.extendleft(part for part in reversed(target.parts) if part != "/")


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
