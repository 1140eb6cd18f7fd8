"""Where a run's files go that its own folder cannot take: they cost minutes of a whole fleet."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from preflight.report.files import write_atomically

PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  a private folder is made there
LEAST_BYTES = 64 << 10
"""Free space below which nothing is begun: not even a small fleet's report would fit."""


class Kept:
    """A private folder elsewhere, made when the first file needs it."""

    def __init__(self) -> None:
        self._folders: list[Path] = []
        self._names: dict[Path, list[str]] = {}
        self._lost: list[str] = []

    def keep(self, name: str, content: bytes) -> None:
        """Write the file into the first place that takes it."""
        own = [os.environ["TMPDIR"]] if os.environ.get("TMPDIR") else []
        if not any(self._written(folder, name, content) for folder in self._folders) and not any(
            self._made(Path(place), name, content) for place in (*own, *PLACES)
        ):
            self._lost.append(name)

    @property
    def words(self) -> str:
        """What is where instead, and what is nowhere."""
        said = [f"{' and '.join(names)} kept in {at}" for at, names in self._names.items() if names]
        return "; ".join([*said, *(f"{name} is lost" for name in self._lost)])

    def _made(self, place: Path, name: str, content: bytes) -> bool:
        try:
            folder = Path(tempfile.mkdtemp(prefix="preflight-", dir=place))
        except OSError:
            return False  # full as well, or not there
        if self._written(folder, name, content):
            self._folders.append(folder)
            return True
        folder.rmdir()
        return False

    def _written(self, folder: Path, name: str, content: bytes) -> bool:
        try:
            write_atomically(folder / name, content)
        except OSError:
            return False
        self._names.setdefault(folder, []).append(name)
        return True


def full(folder: Path) -> bool:
    """Whether the disk below an existing folder has no room for a report, as far as it says so.

    Some network file systems say nothing (no blocks or no inodes at all), and a quota shows later.
    """
    disk = os.statvfs(folder)
    free = disk.f_bavail if os.geteuid() else disk.f_bfree
    no_room = bool(disk.f_blocks) and free * disk.f_frsize < LEAST_BYTES
    return no_room or (bool(disk.f_files) and not disk.f_ffree)
