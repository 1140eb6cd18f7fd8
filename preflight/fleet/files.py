"""Files that the operator names: a pipe, a device or an endless file must not hang the run.

Those that decide what root does, or whom it trusts, must be root's.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from preflight.errors import UsageError
from preflight.trust import who_may_plant


def read_regular(path: Path, largest: int) -> bytes:
    """Read a regular file of at most `largest` bytes; OSError says in words what is wrong."""
    try:
        found = path.stat()  # before opening: a device may act on it
        if stat.S_ISCHR(found.st_mode) and found.st_rdev == Path(os.devnull).stat().st_rdev:
            return b""  # what ssh is often told to take for known_hosts
        _refuse_irregular(found.st_mode)
        # What is swapped for a pipe in between must not block either.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        raise OSError(errno.EINVAL, "its name holds a NUL byte or is no text") from error
    with open(handle, "rb") as file:  # noqa: PTH123  a descriptor, not a path
        opened = os.fstat(handle)
        _refuse_irregular(opened.st_mode)
        # What grows meanwhile, or has no size of its own (/proc), is found out by reading.
        content = b"" if opened.st_size > largest else file.read(largest + 1)
    if max(opened.st_size, len(content)) > largest:
        raise OSError(errno.EFBIG, f"it is larger than {largest >> 20} MiB")
    return content


def refuse_others(path: Path) -> None:
    """UsageError where another than root could change a file or folder; holds for root alone."""
    if os.geteuid() == 0 and (said := who_may_plant(path)):
        raise UsageError(
            f"{path} is not used: {said}; chown root: and chmod go-w it, with the folders above, "
            "or copy it to a folder of root's"
        )


def _refuse_irregular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file (a pipe or a device is not read)")
