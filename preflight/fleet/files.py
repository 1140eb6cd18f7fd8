"""Files that the operator names: a pipe, a device or an endless file must not hang the run.

Those that decide what root does, or whom it trusts, must be root's.
"""

from __future__ import annotations

import errno
import os
import re
import select
import stat
from pathlib import Path
from typing import Any

from preflight.errors import UsageError
from preflight.trust import code_beside, folders_below, who_may_plant

_MOST_DOTS = 64
_TEXT_OF_TOML = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*+"{0,5}|"(?:[^"\\\n]|\\[^\n])*+"?|#[^\n]*'''
    r"""|'''(?:[^']|'(?!''))*+'{0,5}|'[^'\n]*+'?""",
    re.DOTALL,
)

PIPE_S = 60
"""For somebody to open the other end of a named pipe."""


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
        most = f"{largest >> 20} MiB" if largest >> 20 else f"{largest >> 10} KiB"
        raise OSError(errno.EFBIG, f"it is larger than {most}")
    return content


def parse_toml(text: str) -> dict[str, Any]:
    """Read TOML; ValueError or RecursionError for what is none.

    tomllib takes time and memory with the square of a dotted key's parts: 20 KB made 420 MB.
    """
    import tomllib

    for number, line in enumerate(_TEXT_OF_TOML.sub(_only_lines, text).split("\n"), 1):
        if line.count(".") > _MOST_DOTS:
            raise ValueError(f"line {number} has more than {_MOST_DOTS} dots outside of quotes")
    return tomllib.loads(text)


def _only_lines(quoted: re.Match[str]) -> str:
    return "\n" * quoted[0].count("\n")


def open_stream(path: Path) -> int:
    """Open a regular file, or a pipe that somebody writes to or will within PIPE_S, to its end.

    OSError says in words why it cannot be read.
    """
    # Seen before it is opened: a link beside somebody's logs may lead to /dev/watchdog0.
    seen = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        kind = os.fstat(seen).st_mode
        if not stat.S_ISFIFO(kind):
            _refuse_irregular(kind, "it is neither a file nor a pipe")
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(f"/proc/self/fd/{seen}", flags)
    finally:
        os.close(seen)
    try:
        if stat.S_ISFIFO(kind):
            _await_text(handle)
        os.set_blocking(handle, True)
    except OSError:
        os.close(handle)
        raise
    return handle


def _await_text(pipe: int) -> None:
    """Until somebody has opened the other end, a read would tell an end."""
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    if not waiting.poll(PIPE_S * 1000):
        raise OSError(errno.ETIMEDOUT, f"nothing was written into this pipe in {PIPE_S} s")


def refuse_others(path: Path, *, is_run: bool = False) -> None:
    """UsageError where another than root could change a file or folder; holds for root alone.

    `is_run`: nor may he have, or put, code beside it that Python loads by itself.
    """
    if os.geteuid() != 0:
        return
    said = who_may_plant(path)
    if is_run and not said and path.is_file():
        said = next(filter(None, map(who_may_plant, code_beside(path))), "")
    if said:
        raise UsageError(
            f"{path} is not used: {said}; chown root: and chmod go-w it, with the folders above, "
            "or copy it to a folder of root's"
        )


def refuse_all_below(top: Path) -> None:
    """The same for a folder and all that is in it, whose files are read or run together."""
    refuse_others(top)
    for folder in folders_below(top):
        for file in folder.iterdir():
            refuse_others(file)


def _refuse_irregular(
    mode: int, said: str = "it is not a regular file (a pipe or a device is not read)"
) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, said)
