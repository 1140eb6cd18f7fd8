"""A run's folder, made when its first file is written; a full disk costs a file, never a verdict.

Only a folder that is ours, is named by its time and holds nothing but files that preflight writes
counts as a run. Other folders and files are neither read nor removed; no link is ever followed.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.core.command_line import FINE, UNCLEAR
from preflight.core.files import (
    file_errors,
    link_atomically,
    open_folder,
    remove,
    typed_path,
    write_atomically,
    write_typed,
)
from preflight.core.text import natural
from preflight.errors import UsageError
from preflight.report.document import Report, encode
from preflight.report.events import NAME as EVENTS
from preflight.report.events import REPORT, Ended, Events, read_events
from preflight.report.exports import MODE, metrics, refuse_unread
from preflight.report.ready import excluded, launchable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from preflight.report.findings import Finding
    from preflight.report.since import RunSummary


PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  a private folder is made there
LEAST_BYTES = 64 << 10
"""A run is not begun with less free space: not even a small fleet's report would fit."""


class Fallback:
    """A private folder elsewhere for files that the run's folder does not take."""

    def __init__(self) -> None:
        self._names: dict[Path, list[str]] = {}
        self._unwritten: list[str] = []

    def write(self, name: str, content: bytes) -> None:
        """Write the file into the first place that takes it."""
        for folder in chain(list(self._names), _new_private_folders()):
            try:
                write_atomically(folder / name, content)
            except OSError:
                if folder not in self._names:
                    folder.rmdir()
            else:
                self._names.setdefault(folder, []).append(name)
                return
        self._unwritten.append(name)

    @property
    def words(self) -> str:
        """Where the files are instead, and which could be written nowhere."""
        places = [f"{' and '.join(names)} kept in {path}" for path, names in self._names.items()]
        return "; ".join([*places, *(f"{name} is lost" for name in self._unwritten)])


def _new_private_folders() -> Iterator[Path]:
    for place in filter(None, (os.environ.get("TMPDIR"), *PLACES)):
        with suppress(OSError):  # full as well, or missing
            yield Path(tempfile.mkdtemp(prefix="preflight-", dir=place))


def is_full(folder: Path) -> bool:
    """Whether the disk of an existing folder reports too little room for a report.

    Some network file systems report nothing (0 blocks or inodes), and a quota shows only later.
    """
    disk = os.statvfs(folder)
    free = disk.f_bavail if os.geteuid() else disk.f_bfree
    no_room = bool(disk.f_blocks) and free * disk.f_frsize < LEAST_BYTES
    return no_room or (bool(disk.f_files) and not disk.f_ffree)


RUNS = "preflight-runs"
LATEST = "latest"
KEEP = 30
"""Runs that are kept by default: a month of nights."""

NIGHTS = 30
"""The most earlier runs with which a page compares."""

FILES = frozenset((REPORT, "ready.hosts", "measured.json", "report.html", EVENTS))
"""Every file that a run writes."""

_STAMP = re.compile(r"\d{8}-\d{6}(-\d{1,2})?")
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}")
_TAIL = 4 << 20
"""Bytes at the end of a file of events that are read for its last line."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def is_run(path: Path) -> bool:
    """Whether a folder's name is that of a run."""
    return bool(_STAMP.fullmatch(path.name))


def past_runs(path: Path, most: int = NIGHTS) -> tuple[RunSummary, ...]:
    """The finished runs before this one in the same folder, oldest first."""
    if not is_run(path):
        return ()
    nights: list[RunSummary] = []
    with suppress(OSError), open_folder(path.parent, make=False) as parent:
        names = [name for name in _run_names(parent) if natural(name) < natural(path.name)]
        for name in reversed(names):
            if len(nights) == most:
                break
            with suppress(OSError), _open_run(parent, name) as folder:
                night = _read_summary(folder)
                if night is not None:
                    nights.append(night)
    return tuple(reversed(nights))


def set_latest(path: Path) -> None:
    """Make `latest` point to this run, unless it is a file or folder. OSError."""
    if is_run(path):
        link_atomically(path.parent / LATEST, path.name)


def remove_old_runs(path: Path, keep: int) -> None:
    """Keep this run and the newest ones beside it, `keep` in all.

    A run without a report is still running, or was killed: it stays.
    """
    if not is_run(path) or keep < 1:
        return
    with suppress(OSError), open_folder(path.parent, make=False) as parent:
        names = [name for name in _run_names(parent) if name != path.name]
        finished = [name for name in names if _is_removable(parent, name)]
        for name in finished[: max(0, len(finished) - (keep - 1))]:
            with suppress(OSError):
                remove_folder(parent, name, FILES, needs=REPORT)


def _run_names(parent: int) -> list[str]:
    """Names of runs in a folder, oldest first."""
    return sorted(filter(_STAMP.fullmatch, names_in(parent)), key=natural)


def names_in(folder: int) -> list[str]:
    """Names of the entries of an open folder, which may be opened as a path only (O_PATH)."""
    handle = os.open(".", _FOLDER, dir_fd=folder)
    try:
        with os.scandir(handle) as entries:
            return [entry.name for entry in entries]
    finally:
        os.close(handle)


@contextmanager
def _open_run(parent: int, name: str) -> Iterator[int]:
    """Hold a run's folder open; OSError for a link, and for a folder of another user."""
    handle = os.open(name, _FOLDER, dir_fd=parent)
    try:
        if os.fstat(handle).st_uid not in (os.geteuid(), 0):
            raise PermissionError(f"{name} belongs to another user")
        yield handle
    finally:
        os.close(handle)


def _read_summary(folder: int) -> RunSummary | None:
    handle = os.open(EVENTS, _FILE, dir_fd=folder)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return None
        file.seek(max(0, status.st_size - _TAIL))
        lines = file.read(_TAIL).splitlines()
    events = read_events(lines[-1]) if lines else []
    return events[0].night if events and isinstance(events[0], Ended) else None


def _is_removable(parent: int, name: str) -> bool:
    """Whether a folder is a finished run of ours and holds nothing else."""
    with suppress(OSError), _open_run(parent, name) as folder:
        return REPORT in (_run_files(folder, FILES) or ())
    return False


def _run_files(folder: int, files: Collection[str]) -> list[str] | None:
    """The files of a folder of ours, its report last; None if it holds anything else."""
    names = sorted(names_in(folder), key=lambda name: name == REPORT)
    statuses = (os.stat(name, dir_fd=folder, follow_symlinks=False) for name in names)
    regular = all(stat.S_ISREG(status.st_mode) for status in statuses)
    is_ours = os.fstat(folder).st_uid == os.geteuid()
    final_names = (match[1] if (match := _TEMPORARY.fullmatch(name)) else name for name in names)
    return names if is_ours and regular and all(name in files for name in final_names) else None


def remove_folder(parent: int, name: str, files: Collection[str], *, needs: str = "") -> bool:
    """Remove a folder of ours that holds only `files`; False, without removing it, for others.

    `needs`: a file that it must hold, if any.
    """
    with _open_run(parent, name) as folder:
        names = _run_files(folder, files)
        if names is None or (needs and needs not in names):
            return False
        for file in names:
            os.unlink(file, dir_fd=folder)
    os.rmdir(name, dir_fd=parent)
    return True


def new_folder(into: Path, began_s: float) -> Path:
    """The path of a new run in a folder of runs; names sort by time."""
    stamp = datetime.fromtimestamp(began_s, UTC).strftime("%Y%m%d-%H%M%S")
    names = (stamp, *(f"{stamp}-{number}" for number in range(2, 100)))
    return next((into / name for name in names if not (into / name).exists()), into / stamp)


@dataclass
class Outputs:
    """The run's folder; made when the first file is written, so that `--co` leaves nothing."""

    path: Path
    exclude_file: Path | None = None
    """The file for the nodes to leave out, as the operator typed it."""
    keep: int = KEEP
    """Runs to keep, including this one; 0: all of them."""
    metrics: Path | None = None
    """The file of the run's numbers for Prometheus, if any."""
    trouble: str = field(default="", init=False)
    metrics_trouble: str = field(default="", init=False)
    """Why the file for Prometheus was not written, if so."""
    unsaved: bool = field(default=False, init=False)
    """Everything is ready, but not every file could be written where it belongs."""
    written: set[str] = field(default_factory=set, init=False)
    fallback: Fallback = field(default_factory=Fallback, init=False)
    events: Events = field(init=False)

    def __post_init__(self) -> None:
        self.events = Events(self.path / EVENTS)

    @classmethod
    def for_run(cls, working: Path, chosen: str | None, began_s: float) -> Outputs:
        """Use the operator's folder, else a new one per run under the working folder."""
        if chosen == "-":
            raise UsageError("--preflight-report=-: give a folder")
        if chosen:
            return cls(working / typed_path(chosen))
        return cls(new_folder(working / RUNS, began_s))

    def refuse_unusable(self) -> None:
        """UsageError (exit 4), before anything is measured, if nothing could be written."""
        self._refuse_exclude_file()
        with file_errors("--preflight-report", "give a folder of your own"):
            existing = next(path for path in (self.path, *self.path.parents) if path.exists())
        if not existing.is_dir():
            raise UsageError(f"--preflight-report: {existing} is not a folder: give another one")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise UsageError(f"cannot write into {existing}: give a folder with --preflight-report")
        if self.metrics is not None:
            refuse_unread(self.metrics)
        if is_full(existing):
            advice = "make room, or give --preflight-report=DIR"
            raise UsageError(f"the disk of {existing} is full: {advice}")
        with (
            file_errors("--preflight-report", "give a folder of your own"),
            suppress(FileNotFoundError),  # the existing folders above it are fine
            open_folder(self.path, make=False),
        ):
            pass

    def _refuse_exclude_file(self) -> None:
        file = self.exclude_file
        if file is None:
            return
        if not file.parent.is_dir() or not os.access(file.parent, os.W_OK | os.X_OK):
            raise UsageError(
                f"--preflight-exclude-file: cannot write into {file.parent}: give a file in a "
                "folder of your own"
            )
        if file.is_dir():
            raise UsageError(f"--preflight-exclude-file: {file} is a folder: give a file")

    @property
    def folder_words(self) -> str:
        """The folder as a person would type it."""
        try:
            return str(self.path.relative_to(Path.cwd()))
        except ValueError:
            return str(self.path)

    def path_words(self, name: str) -> str:
        """The path of a file in it, as a person would type it; "" if it was not written."""
        return f"{self.folder_words}/{name}" if name in self.written else ""

    def write(self, name: str, content: bytes) -> None:
        """Write one file in one piece; if that fails, write it to the fallback folder.

        Then an earlier run's file of that name is removed: it would be taken for this run's.
        """
        try:
            write_atomically(self.path / name, content)
            self.written.add(name)
        except OSError as error:
            with suppress(OSError):
                remove(self.path / name)
            self.fallback.write(name, content)
            self.trouble = self.trouble or f"cannot write {self.path / name}: {error.strerror}"

    def write_report(self, report: Report) -> Report:
        """Write report.json, the ready nodes, and the file of nodes to exclude if it is requested.

        Exit 0 becomes 3 if a file could not be written where it belongs.
        """
        ready = launchable(report.fleet)
        self.write("ready.hosts", "".join(f"{name}\n" for name in ready).encode())
        self.write(REPORT, encode(report))
        if self.exclude_file is not None:
            nodes = excluded(report.fleet)
            self.write_asked(self.exclude_file, f"{nodes}\n".encode() if nodes else b"")
        self.unsaved = bool(self.trouble) and report.exit == FINE
        return replace(report, exit=UNCLEAR) if self.unsaved else report

    def write_asked(self, path: Path, content: bytes, *, make: bool = False) -> None:
        """Write a file whose path the operator typed. `make`: make missing folders."""
        try:
            write_typed(path, content, make=make)
        except OSError as error:
            self.fallback.write(path.name, content)
            self.trouble = self.trouble or f"cannot write {path}: {error.strerror}"

    @property
    def report_words(self) -> str:
        """Where the report is, what could not be written, and what to do about that."""
        trouble = self.trouble and (
            f"{self.trouble}; {self.fallback.words}; make room there, or give another folder: "
            "--preflight-report=DIR"
        )
        return "; ".join(filter(None, (self.path_words(REPORT), trouble, self.metrics_trouble)))

    def write_metrics(self, report: Report, findings: Sequence[Finding]) -> None:
        """Write the file for Prometheus if it is requested."""
        if self.metrics is not None:
            try:
                write_typed(self.metrics, metrics(report, findings), MODE)
            except OSError as error:
                self.metrics_trouble = f"cannot write {self.metrics}: {error.strerror}"
