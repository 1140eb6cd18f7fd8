"""Where the launch's output goes, and how the end of it is had again without standing between.

Standard output and error are inherited. Where one is a file (Slurm's, nohup's) that file is read
afterwards; `--tee` puts a `tee` there, a process of its own, so that a launch outlives its watch.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from preflight.triage.explain.folders import LEFT
from preflight.watching import signals

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from preflight.watching.children import Children

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
    for pattern in LEFT:
        found += [path for path in sorted(folder.glob(pattern)) if path.stat().st_size]
    return found
