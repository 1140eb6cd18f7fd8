"""Holds debug files to a size, though NCCL keeps each open and never asks where it has got to.

NCCL writes at its own position, not at the file's end: a file that is renamed goes on growing under
its new name, one that is cut off has a hole up to where it is written next. So the space of what
lies between its first and last lines is given back in place (a hole). Where a file system has no
holes on demand, the file is emptied instead, and only its end is kept, in a copy.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BLOCK = 4096
_SECTOR = 512
_OFTEN_S, _SELDOM_S, _SLOWER = 0.1, 1.0, 1.25
_COPIED = 1 << 20
_BEFORE = ".before"
"""Of a file that was emptied: what its end was then."""


class Cap(NamedTuple):
    """How much a file may hold on the disk, and what of it is kept once it holds half of that."""

    most: int

    @property
    def head(self) -> int:
        """Bytes of its beginning: versions, devices and topology stand there."""
        return self.most // 8 // _BLOCK * _BLOCK

    @property
    def tail(self) -> int:
        """Bytes of its end."""
        return self.most // 4 // _BLOCK * _BLOCK


class Janitor:
    """Looks after the files below some folders; more often while one of them grows fast."""

    def __init__(self, folders: Iterable[Path], cap: Cap) -> None:
        self._folders = tuple(folders)
        self._cap = cap
        self._sizes: dict[str, int] = {}
        self._emptied: dict[str, int] = {}
        self.every_s = _OFTEN_S
        """When to call `sweep` next."""

    def sweep(self) -> None:
        """Give back the middle of every file that holds more than half of what it may."""
        grew = 0
        for path in self._files():
            try:
                found = path.lstat()
                if found.st_blocks * _SECTOR > self._cap.most // 2:
                    self._emptied[str(path)] = _give_back(path, self._cap)
            except OSError:
                continue
            grew = max(grew, found.st_size - self._sizes.get(str(path), 0))
            self._sizes[str(path)] = found.st_size
        calm = grew < self._cap.most // 64
        self.every_s = min(self.every_s * _SLOWER, _SELDOM_S) if calm else _OFTEN_S

    def close(self) -> None:
        """When nobody writes any more: put a line in the place of each hole."""
        self.sweep()
        for path in self._files():
            with suppress(OSError):
                _close_up(path, self._cap, self._emptied.get(str(path), 0))

    def _files(self) -> list[Path]:
        found = []
        for folder in self._folders:
            for place, _, names in os.walk(folder):
                found += [Path(place, name) for name in names if name.endswith(".log")]
        return [path for path in found if not path.is_symlink()]


def _give_back(path: Path, cap: Cap) -> int:
    """Return how long the file was where it had to be emptied, else 0."""
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        end = (os.fstat(handle).st_size - cap.tail) // _BLOCK * _BLOCK
        if end > cap.head and not _punch(handle, cap.head, end - cap.head):
            size = _write_copy(path, handle, cap)
            os.ftruncate(handle, 0)
            return size
        return 0
    finally:
        os.close(handle)


def _punch(handle: int, start: int, length: int) -> bool:
    """Make a hole; False where this file system makes none."""
    libc = ctypes.CDLL(None, use_errno=True)
    long = ctypes.c_int64
    mode = ctypes.c_int(_KEEP_SIZE | _PUNCH_HOLE)
    return bool(libc.fallocate(ctypes.c_int(handle), mode, long(start), long(length)) == 0)


def _write_copy(path: Path, handle: int, cap: Cap) -> int:
    """Keep the end of a file that is about to be emptied, in place of the last such copy."""
    size = os.fstat(handle).st_size
    path.with_suffix(_BEFORE).write_bytes(os.pread(handle, cap.tail, max(size - cap.tail, 0)))
    return size


def _close_up(path: Path, cap: Cap, emptied: int) -> None:
    """Write the file anew: its beginning, a line that says how much is missing, its end.

    `emptied`: how long it was when it was last emptied; nothing may have come since.
    """
    before = path.with_suffix(_BEFORE)
    with path.open("rb") as old:
        size = os.fstat(old.fileno()).st_size
        hole = os.lseek(old.fileno(), 0, os.SEEK_HOLE) if size else 0
        size = size or (emptied if before.exists() else 0)
        if hole >= size:
            return
        kept = before.read_bytes().lstrip(b"\0") if before.exists() else b""
        room = max(cap.most - hole - len(kept) - _BLOCK, 0)
        start = max(_data_behind(old.fileno(), hole, size), size - room)
        missing = start - hole - len(kept)
        new = path.with_suffix(".new")
        with new.open("xb") as file:
            _copy(old.fileno(), file.fileno(), 0, min(hole, cap.most))
            os.write(file.fileno(), b"\n[preflight: %d bytes were given back here]\n" % missing)
            file.write(kept)
            file.flush()
            _copy(old.fileno(), file.fileno(), start, size)
    new.replace(path)
    before.unlink(missing_ok=True)


def _data_behind(handle: int, hole: int, size: int) -> int:
    """Where there is something again, to the byte; its size where there is nothing."""
    try:
        block = os.lseek(handle, hole, os.SEEK_DATA)
    except OSError:
        return size
    text = os.pread(handle, _BLOCK, block)
    return block + len(text) - len(text.lstrip(b"\0"))


def _copy(source: int, target: int, start: int, end: int) -> None:
    while start < end and (block := os.pread(source, min(_COPIED, end - start), start)):
        os.write(target, block)
        start += len(block)
