"""Opens what a user or a request names: a device may act on being opened, so it is seen first."""

from __future__ import annotations

import errno
import os
import stat

_HARMLESS = (os.makedev(1, 3), os.makedev(1, 11))
"""/dev/null and /dev/kmsg. Who opens and closes /dev/watchdog0 restarts the node."""


def opened(path: str, *, follow: bool = True) -> tuple[int, os.stat_result]:
    """Return a regular file, open to be read; OSError, EINVAL where it is something else."""
    seen = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        status = os.fstat(seen)
        if not stat.S_ISREG(status.st_mode) and status.st_rdev not in _HARMLESS:
            is_folder = stat.S_ISDIR(status.st_mode)
            code = errno.EISDIR if is_folder else errno.EINVAL
            raise OSError(code, os.strerror(code) if is_folder else "it is no regular file")
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open("/proc/self/fd/%d" % seen, flags), status
    finally:
        os.close(seen)
