"""Stores the launch's output and NCCL's debug files, and limits their size.

Standard output and error are inherited. If one is a file (Slurm's, nohup's), that file is read
afterwards; `--tee` puts a separate `tee` process there, so that a launch outlives its watch.

NCCL writes at its own position, not at the file's end: a renamed file goes on growing under its new
name, and a truncated one has a hole up to the next write. So the middle of the file becomes a hole,
which frees its space in place. On a file system that cannot make holes, the file is emptied
instead, and only a copy of its end remains.
"""

from __future__ import annotations

import ctypes
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from preflight.core.files import open_new
from preflight.hang.watch import signals
from preflight.hang.watch.evidence import COPIES, LEFT, TEES, files_of

LONGEST = 8 << 20
"""Bytes stored of the end of a file."""

_TEE_ENDS_S = 5.0
"""How long a `tee` may run after the launch: another process may hold its pipe for ever."""

_BLOCK = 1 << 20


class Source(NamedTuple):
    """A descriptor that is a regular file, and the file's size before the launch."""

    descriptor: int
    offset: int


class Output:
    """Standard output and error of the launch."""

    def __init__(self) -> None:
        self._sources = _regular_outputs()
        self._tees: list[int] = []
        self._pipes: list[int] = []

    def tee(self, children: signals.Children, folder: Path) -> list[tuple[Any, ...]]:
        """Start a `tee` for each; return the file actions for the launch. OSError if that fails."""
        actions: list[tuple[Any, ...]] = []
        for number, name in enumerate(TEES, 1):
            read_end, write_end = os.pipe()
            self._pipes += [read_end, write_end]
            os.close(open_new(folder / name))  # tee itself would let every user read it
            self._tees.append(
                children.start(
                    ["tee", "-a", str(folder / name)], os.environ,
                    [(os.POSIX_SPAWN_DUP2, read_end, 0), (os.POSIX_SPAWN_DUP2, number, 1)],
                    blocked=signals.PASSED,
                )
            )  # fmt: skip
            actions.append((os.POSIX_SPAWN_DUP2, write_end, number))
        self._sources = ()
        return actions

    def close_pipes(self) -> None:
        """Close the pipes here, once the launch has its ends."""
        while self._pipes:
            os.close(self._pipes.pop())

    def finish(self, children: signals.Children) -> None:
        """Wait until the launch's output has been written."""
        until = time.monotonic() + _TEE_ENDS_S
        while time.monotonic() < until:
            children.reap()
            if all(children.status(pid) is not None for pid in self._tees):
                return
            signals.wait(until - time.monotonic())

    def keep(self, folder: Path) -> list[Path]:
        """Copy the end of the launch's output so far; return the copies' paths.

        If both streams go to one file, only the first copy exists.
        """
        copies = []
        for source in self._sources:
            path = folder / COPIES[source.descriptor - 1]
            if text := _read_end(source):
                path.write_bytes(text)
                copies.append(path)
        return copies + [path for path, size in files_of(folder, TEES).items() if size]


def _regular_outputs() -> tuple[Source, ...]:
    sources: dict[tuple[int, int], Source] = {}
    for number in (1, 2):
        try:
            status = os.fstat(number)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            sources.setdefault((status.st_dev, status.st_ino), Source(number, status.st_size))
    return tuple(sources.values())


def _read_end(source: Source) -> bytes:
    try:
        handle = os.open(f"/proc/self/fd/{source.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        size = os.fstat(handle).st_size
        start = source.offset if size >= source.offset else 0  # the file was truncated meanwhile
        return b"".join(_blocks(handle, max(start, size - LONGEST), size))
    finally:
        os.close(handle)


def _blocks(handle: int, start: int, end: int) -> Iterator[bytes]:
    """Read a part of a file; less if the file ends before."""
    while start < end and (block := os.pread(handle, min(_BLOCK, end - start), start)):
        yield block
        start += len(block)


def logs(folder: Path, copies: Sequence[Path]) -> list[Path]:
    """Every file of the folder that may show why the launch ended, its output first."""
    paths = [*copies]
    with suppress(OSError):
        paths += [path for path, size in files_of(folder, LEFT).items() if size]
    return paths


_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BLOCK_BYTES = 4096
_SECTOR = 512
_OFTEN_S, _SELDOM_S, _SLOWER = 0.1, 1.0, 1.25
_BEFORE = ".before"
"""Suffix of the copy of the end of an emptied file."""


class Cap(NamedTuple):
    """The limit of a file on disk, and how much stays once it reaches half of that."""

    most: int

    @property
    def head(self) -> int:
        """Bytes of its beginning, which has versions, devices and topology."""
        return self.most // 8 // _BLOCK_BYTES * _BLOCK_BYTES

    @property
    def tail(self) -> int:
        """Bytes of its end."""
        return self.most // 4 // _BLOCK_BYTES * _BLOCK_BYTES


class Trimmer:
    """Limits the log files below a folder; runs more often while one grows fast."""

    def __init__(self, folder: Path, cap: Cap) -> None:
        self._folder, self._cap = folder, cap
        self._sizes: dict[str, int] = {}
        self._emptied: dict[str, int] = {}
        self.every_s = _OFTEN_S
        """When to call `sweep` next."""

    def sweep(self) -> None:
        """Free the middle of every file above half of its limit."""
        grew = 0
        for path in self._files():
            try:
                status = path.lstat()
                if status.st_blocks * _SECTOR > self._cap.most // 2:
                    self._emptied[str(path)] = _free_middle(path, self._cap)
            except OSError:
                continue
            grew = max(grew, status.st_size - self._sizes.get(str(path), 0))
            self._sizes[str(path)] = status.st_size
        calm = grew < self._cap.most // 64
        self.every_s = min(self.every_s * _SLOWER, _SELDOM_S) if calm else _OFTEN_S

    def close(self) -> None:
        """Replace each hole by a line, once no process writes any more."""
        self.sweep()
        for path in self._files():
            with suppress(OSError):
                _replace_hole(path, self._cap, self._emptied.get(str(path), 0))

    def _files(self) -> list[Path]:
        every = (Path(place, name) for place, _, names in os.walk(self._folder) for name in names)
        return [path for path in every if path.suffix == ".log" and not path.is_symlink()]


def _free_middle(path: Path, cap: Cap) -> int:
    """Free the middle; return the file's size if it had to be emptied, otherwise 0."""
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        end = (os.fstat(handle).st_size - cap.tail) // _BLOCK_BYTES * _BLOCK_BYTES
        if end > cap.head and not _punch(handle, cap.head, end - cap.head):
            size = os.fstat(handle).st_size
            copied = os.pread(handle, cap.tail, max(size - cap.tail, 0))
            path.with_suffix(_BEFORE).write_bytes(copied)
            os.ftruncate(handle, 0)
            return size
        return 0
    finally:
        os.close(handle)


def _punch(handle: int, start: int, length: int) -> bool:
    """Make a hole; False if the file system cannot."""
    offsets = ctypes.c_int64(start), ctypes.c_int64(length)
    fallocate = ctypes.CDLL(None).fallocate
    return bool(fallocate(handle, _KEEP_SIZE | _PUNCH_HOLE, *offsets) == 0)


def _replace_hole(path: Path, cap: Cap, emptied: int) -> None:
    """Rewrite the file: its beginning, a line with the number of missing bytes, its end.

    `emptied`: its size when it was last emptied; it may have no data since.
    """
    before = path.with_suffix(_BEFORE)
    with path.open("rb") as old:
        size = os.fstat(old.fileno()).st_size
        hole = os.lseek(old.fileno(), 0, os.SEEK_HOLE) if size else 0
        size = size or (emptied if before.exists() else 0)
        if hole >= size:
            return
        copy = before.read_bytes().lstrip(b"\0") if before.exists() else b""
        room = max(cap.most - hole - len(copy) - _BLOCK_BYTES, 0)
        start = max(_data_after(old.fileno(), hole, size), size - room)
        missing = start - hole - len(copy)
        new = path.with_suffix(".new")
        with new.open("xb") as file:
            file.writelines(_blocks(old.fileno(), 0, min(hole, cap.most)))
            file.write(b"\n[preflight: %d bytes were given back here]\n" % missing)
            file.write(copy)
            file.writelines(_blocks(old.fileno(), start, size))
    new.replace(path)
    before.unlink(missing_ok=True)


def _data_after(handle: int, hole: int, size: int) -> int:
    """The first byte with data after a hole; the file's size if there is none."""
    try:
        block = os.lseek(handle, hole, os.SEEK_DATA)
    except OSError:
        return size
    text = os.pread(handle, _BLOCK_BYTES, block)
    return block + len(text) - len(text.lstrip(b"\0"))
