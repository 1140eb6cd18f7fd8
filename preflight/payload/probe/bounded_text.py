"""Turns a node's texts into printable ones of bounded length, for terminals and reports."""

from __future__ import annotations

import errno
import os
import re
import select
import stat
from contextlib import suppress

LINE_LIMIT = 512
"""Characters of a name, state or version (`Line` in the document)."""

TEXT_LIMIT = 2048
"""Characters of a command or message; half of what the document allows."""

_ESCAPE = r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|.?)"
"""An escape without its end matches alone: it must not hide the text after it."""


def clean(raw: bytes | str, limit: int = LINE_LIMIT) -> str:
    """Return one printable line: whitespace becomes blanks, control characters are dropped."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    if text[-1:] == "\n" and text[:-1].isprintable():  # nearly every file of sysfs
        text = text[:-1] + " "
    if not text.isprintable():
        text = re.sub(_ESCAPE, "", text)
        text = "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def clean_block(raw: bytes, limit: int) -> str:
    """Return the same for text of several lines: tabs and newlines are kept."""
    text = re.sub(_ESCAPE, "", raw.decode("utf-8", "replace"))
    return "".join(c for c in text if c in "\t\n" or c.isprintable())[:limit]


def words(error: BaseException) -> str:
    """Return the cause of an exception: "Permission denied" rather than its class."""
    if isinstance(error, OSError) and error.strerror:
        return clean(error.strerror)
    return clean(f"{type(error).__name__}: {error}")


def raw(path: str, limit: int = 65536) -> bytes:
    """Return one read of a small file of /proc or /sys; OSError if it does not exist."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, limit)
    finally:
        os.close(file)


def attempt_raw(path: str, limit: int = 65536) -> bytes:
    """Return the same, or b"" where it cannot be read (a process that has ended)."""
    try:
        return raw(path, limit)
    except OSError:
        return b""


def attempt(path: str) -> str:
    """Return one small file of /proc or /sys, cleaned and stripped; "" where it cannot be read."""
    return clean(attempt_raw(path)).strip()


def number(path: str) -> int | None:
    """Return the count in such a file; None for -1, "unknown", or where it cannot be read."""
    return whole(attempt(path))


def whole(text: str | bytes) -> int | None:
    """Return the whole number that a text is; None for anything else, or over 20 digits.

    A user's text may be "²", which is a digit for isdigit() and an error for int().
    """
    return int(text) if text.isdigit() and text.isascii() and len(text) <= _DIGITS else None


_DIGITS = 20


def counters(paths: dict[str, str]) -> dict[str, int]:
    """Return the counters in these files by name, bounded; without those that cannot be read."""
    found = {name: number(path) for name, path in paths.items()}
    return {name: min(count, 2**53) for name, count in found.items() if count is not None}


def names(folder: str) -> list[str]:
    """Return the entries of a folder, sorted; [] where it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


_HARMLESS = (os.makedev(1, 3), os.makedev(1, 11))
"""/dev/null and /dev/kmsg. Opening and closing /dev/watchdog0 would restart the node."""


def open_regular(path: str, *, follow: bool = True) -> tuple[int, os.stat_result]:
    """Open a regular file for reading; OSError with EINVAL for anything else."""
    seen = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        status = os.fstat(seen)
        if not stat.S_ISREG(status.st_mode) and status.st_rdev not in _HARMLESS:
            is_folder = stat.S_ISDIR(status.st_mode)
            code = errno.EISDIR if is_folder else errno.EINVAL
            raise OSError(code, os.strerror(code) if is_folder else "it is no regular file")
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open("/proc/self/fd/%d" % seen, flags)
    finally:
        os.close(seen)
    if stat.S_ISREG(status.st_mode) and not status.st_size and _is_endless(file):
        os.close(file)
        raise OSError(errno.EINVAL, "it is no regular file")
    return file, status


def _is_endless(file: int) -> bool:
    """Whether reads of it can block: /proc/kmsg, tracefs's trace_pipe.

    Reading these would take the text from other readers. epoll accepts no file on a file system,
    except on FUSE, whose file systems have blocks.
    """
    with suppress(PermissionError), select.epoll() as waiting:
        waiting.register(file)
        return not os.fstatvfs(file).f_blocks
    return False
