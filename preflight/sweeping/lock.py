"""One sweep at a time: two would measure each other, and take each other's nodes for busy ones.

The kernel's own lock on a file: it ends with whoever holds it, however he ended. A wave's process
holds it as well, so that nobody begins before the wave of a killed sweep has left its nodes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.report.files import open_folder
from preflight.transport.legible import legible
from preflight.trust import who_may_plant

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_POLL_S = 0.2


@contextmanager
def locked(folder: Path, *, wait_s: float = 0.0) -> Iterator[int]:
    """Hold the folder's lock; gives its descriptor. UsageError that names who holds it.

    `wait_s`: for the wave of a sweep that was killed to end by itself.
    """
    with _opened(folder) as lock:
        ends = time.monotonic() + wait_s
        while not _taken(lock, folder):
            if time.monotonic() >= ends:
                raise UsageError(f"{_holder(lock)} in {folder}: wait for its end, or end it")
            time.sleep(_POLL_S)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()} {socket.gethostname()} {int(time.time())}\n".encode(), 0)
        yield lock


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    try:
        with open_folder(folder, make=True) as inside:
            # What the waves write there is read back.
            if os.geteuid() == 0 and (said := who_may_plant(folder)):
                raise UsageError(f"--into={folder}: {said}: give a folder that is root's alone")
            lock = os.open(NAME, _FLAGS, 0o640, dir_fd=inside)
    except OSError as error:
        raise UsageError(
            f"--into={folder}: {error.strerror}: give a folder of your own for the sweeps"
        ) from error
    try:
        found = os.fstat(lock)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise UsageError(f"{folder / NAME} is another file by a hard link: remove it")
        yield lock
    finally:
        os.close(lock)


def _taken(lock: int, folder: Path) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise UsageError(
            f"--into={folder} cannot be locked ({error.strerror}): give a folder on a local disk"
        ) from error
    return True


def _holder(lock: int) -> str:
    """Who wrote himself into it: a person finds the process by that."""
    words = legible(os.pread(lock, 200, 0), 100).split()
    since = ""
    with suppress(ValueError, OverflowError, IndexError):
        since = time.strftime(" since %Y-%m-%d %H:%M", time.localtime(int(words[2])))
        return f"another sweep runs (process {int(words[0])} on {words[1]}{since})"
    return "another sweep runs"
