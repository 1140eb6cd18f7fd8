"""The launch's output and NCCL's debug files: kept, and held to a size.

Standard output and error are inherited. Where one is a file (Slurm's, nohup's) that file is read
afterwards; `--tee` puts a `tee` there, a process of its own, so that a launch outlives its watch.

NCCL writes at its own position, not at the file's end: a file that is renamed goes on growing under
its new name, one that is cut off has a hole up to where it is written next. So the space of what
lies between its first and last lines is given back in place (a hole). Where a file system has no
holes on demand, the file is emptied instead, and only its end is kept, in a copy.
"""

from __future__ import annotations

import ctypes
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from preflight.hang.watch import signals
from preflight.hang.watch.evidence import LEFT, files_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from preflight.hang.watch.signals import Children


LONGEST = 8 << 20
"""Bytes of the end of a file that are kept."""

_LAST_WORDS_S = 5.0
"""How long a `tee` may take when the launch has ended: another may hold its pipe for ever."""

_BLOCK = 1 << 20
_NAMES = {1: "output.log", 2: "errors.log"}
"""Of the copies; where both go to one file there is the first."""


class Source(NamedTuple):
    """A descriptor of ours that is a regular file, and how long that was before the launch."""

    descriptor: int
    began: int


class Output:
    """Standard output and error of the launch."""

    def __init__(self) -> None:
        self._sources = _files()
        self._tees: list[int] = []
        self._pipes: list[int] = []

    def tee(self, children: Children, folder: Path) -> list[tuple[Any, ...]]:
        """Start a `tee` for each; the answer makes them the launch's. OSError where none can."""
        actions: list[tuple[Any, ...]] = []
        for number, name in ((1, "stdout.log"), (2, "stderr.log")):
            theirs, ours = os.pipe()
            self._pipes += [theirs, ours]
            self._tees.append(
                children.start(
                    ["tee", "-a", str(folder / name)], os.environ,
                    [(os.POSIX_SPAWN_DUP2, theirs, 0), (os.POSIX_SPAWN_DUP2, number, 1)],
                    blocked=signals.PASSED,
                )
            )  # fmt: skip
            actions.append((os.POSIX_SPAWN_DUP2, ours, number))
        self._sources = ()
        return actions

    def let_go(self) -> None:
        """Once the launch has its own ends of the pipes."""
        while self._pipes:
            os.close(self._pipes.pop())

    def finish(self, children: Children) -> None:
        """Wait until what the launch said has been written."""
        until = time.monotonic() + _LAST_WORDS_S
        while time.monotonic() < until:
            children.reap()
            if all(children.status(pid) is not None for pid in self._tees):
                return
            signals.wait(until - time.monotonic())

    def keep(self, folder: Path) -> list[Path]:
        """Copy the ends of what the launch has written so far; where they are."""
        kept = []
        for source in self._sources:
            path = folder / _NAMES[source.descriptor]
            if text := _end(source):
                path.write_bytes(text)
                kept.append(path)
        return kept + [path for path in (folder / "stdout.log", folder / "stderr.log")
                       if path.is_file() and path.stat().st_size]  # fmt: skip


def _files() -> tuple[Source, ...]:
    found: dict[tuple[int, int], Source] = {}
    for number in (1, 2):
        try:
            seen = os.fstat(number)
        except OSError:
            continue
        if stat.S_ISREG(seen.st_mode):
            found.setdefault((seen.st_dev, seen.st_ino), Source(number, seen.st_size))
    return tuple(found.values())


def _end(source: Source) -> bytes:
    try:
        handle = os.open(f"/proc/self/fd/{source.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        size = os.fstat(handle).st_size
        began = source.began if size >= source.began else 0  # somebody has emptied it
        return _read(handle, max(began, size - LONGEST), size)
    finally:
        os.close(handle)


def _read(handle: int, start: int, end: int) -> bytes:
    blocks = []
    while start < end and (block := os.pread(handle, min(_BLOCK, end - start), start)):
        blocks.append(block)
        start += len(block)
    return b"".join(blocks)


def logs(folder: Path, kept: Sequence[Path]) -> list[Path]:
    """Every file of the folder that may say what ended the launch, its output first."""
    found = [*kept]
    with suppress(OSError):
        found += [path for path, size in files_of(folder, LEFT).items() if size]
    return found


_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BLOCK_BYTES = 4096
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
        return self.most // 8 // _BLOCK_BYTES * _BLOCK_BYTES

    @property
    def tail(self) -> int:
        """Bytes of its end."""
        return self.most // 4 // _BLOCK_BYTES * _BLOCK_BYTES


class Trimmer:
    """Holds the log files below some folders to their size; more often while one grows fast."""

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
        end = (os.fstat(handle).st_size - cap.tail) // _BLOCK_BYTES * _BLOCK_BYTES
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
        room = max(cap.most - hole - len(kept) - _BLOCK_BYTES, 0)
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
    text = os.pread(handle, _BLOCK_BYTES, block)
    return block + len(text) - len(text.lstrip(b"\0"))


def _copy(source: int, target: int, start: int, end: int) -> None:
    while start < end and (block := os.pread(source, min(_COPIED, end - start), start)):
        os.write(target, block)
        start += len(block)
