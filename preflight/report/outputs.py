"""A run's folder: made when the first file needs it; a full disk costs a file, never a verdict."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.report.events import NAME, Events
from preflight.report.files import open_folder, remove, write_atomically, write_typed
from preflight.report.kept import Kept, full
from preflight.report.prometheus import refuse_unread, write_metrics
from preflight.report.runs import KEEP, RUNS, point_at, tidy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.report.document import Report
    from preflight.report.findings import Finding


@dataclass
class Outputs:
    """The run's folder; made when the first file needs it, so that `--co` leaves nothing."""

    path: Path
    exclude_file: Path | None = None
    """Where the nodes to leave out are written, as somebody typed it."""
    keep: int = KEEP
    """Runs that stay beside this one, itself counted; 0: all of them."""
    metrics: Path | None = None
    """Where the run's numbers go for Prometheus, if anywhere."""
    trouble: str = field(default="", init=False)
    written: set[str] = field(default_factory=set, init=False)
    kept: Kept = field(default_factory=Kept, init=False)
    events: Events = field(init=False)

    def __post_init__(self) -> None:
        self.events = Events(self.path / NAME)

    @classmethod
    def beside(cls, working: Path, chosen: str | None, began_s: float) -> Outputs:
        """Use the operator's folder, else a new one per run under the working folder."""
        if chosen:
            return cls(working / Path(chosen).expanduser())
        stamp = datetime.fromtimestamp(began_s, UTC).strftime("%Y%m%d-%H%M%S")
        folder = working / RUNS
        names = (stamp, *(f"{stamp}-{number}" for number in range(2, 100)))
        return cls(
            next((folder / name for name in names if not (folder / name).exists()), folder / stamp)
        )

    def refuse_unusable(self) -> None:
        """Say before anything is measured that nothing could be written; UsageError (exit 4)."""
        self._refuse_exclude_file()
        there = next(path for path in (self.path, *self.path.parents) if path.exists())
        if not there.is_dir():
            raise UsageError(f"--preflight-report: {there} is no folder: give another one")
        if not os.access(there, os.W_OK | os.X_OK):
            raise UsageError(f"cannot write into {there}: give a folder with --preflight-report")
        if self.metrics is not None:
            refuse_unread(self.metrics)
        if full(there):
            raise UsageError(
                f"the disk of {there} is full: make room, or give --preflight-report=DIR"
            )
        try:
            with open_folder(self.path, make=False):
                return
        except FileNotFoundError:
            return  # what is there of the way to it is fine
        except OSError as error:
            raise UsageError(
                f"--preflight-report: {error.strerror}: give a folder of your own"
            ) from error

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
    def shown(self) -> str:
        """The folder as a person would type it."""
        try:
            return str(self.path.relative_to(Path.cwd()))
        except ValueError:
            return str(self.path)

    def write(self, name: str, content: bytes) -> None:
        """Write one file in one piece. A full disk costs its place there, never the verdicts.

        What an earlier run left there under that name is removed: it would be taken for this one's.
        """
        try:
            write_atomically(self.path / name, content)
            self.written.add(name)
        except OSError as error:
            with suppress(OSError):
                remove(self.path / name)
            self.kept.keep(name, content)
            self.trouble = self.trouble or f"cannot write {self.path / name}: {error.strerror}"

    def write_excluded(self, nodes: str) -> None:
        """Write the nodes to leave out in one line, an empty file for none, if anybody asked."""
        if self.exclude_file is None:
            return
        self.write_asked(self.exclude_file, f"{nodes}\n".encode() if nodes else b"")

    def write_asked(self, path: Path, content: bytes, *, make: bool = False) -> None:
        """Write a file where somebody typed it. `make`: with the folders that are missing."""
        try:
            write_typed(path, content, make=make)
        except OSError as error:
            self.kept.keep(path.name, content)
            self.trouble = self.trouble or f"cannot write {path}: {error.strerror}"

    @property
    def told(self) -> str:
        """What could not be written, where it is instead, what to do; nothing if all is well."""
        if not self.trouble:
            return ""
        return (
            f"{self.trouble}; {self.kept.words}; make room there, or give another folder: "
            "--preflight-report=DIR"
        )

    def tell_prometheus(self, report: Report, found: Sequence[Finding]) -> str:
        """Write the numbers where they were asked for; say why that was not possible, if so."""
        if self.metrics is None:
            return ""
        try:
            write_metrics(self.metrics, report, found)
        except OSError as error:
            return f"cannot write {self.metrics}: {error.strerror}"
        return ""

    def put_away(self) -> None:
        """Let `latest` lead here and remove the oldest runs: what cannot be done costs nothing."""
        with suppress(OSError):
            point_at(self.path)
        tidy(self.path, self.keep)
