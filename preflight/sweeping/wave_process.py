"""The process of one wave, seen from the sweep: begun, looked after, ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from preflight.errors import PreflightError
from preflight.fleet.files import read_regular
from preflight.history.place import SWEEP
from preflight.report.document import Report, refuse_odd_names
from preflight.report.files import open_new
from preflight.transport.legible import legible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SCREEN = "terminal.txt"
"""What the wave would have shown on a terminal of its own."""

LEAVE_S = 60.0
"""For a wave to leave its nodes and write its report, once it was told to end."""

LARGEST = 1 << 30
"""Bytes of a wave's report."""

_TAIL = 4096
_PHASE = re.compile(r"^(?:probing|ports|burn-in|import torch|pairs) +\S.*")


class WaveError(PreflightError):
    """A wave left no report that can be used; the text says why."""


class WaveProcess:
    """`preflight run` of some nodes, with its folder."""

    def __init__(self, words: Sequence[str], folder: Path, cwd: str, lock: int, sweep: str) -> None:
        """Start it; OSError if its folder cannot be written or its working folder is gone."""
        self._folder = folder
        screen = open_new(folder / SCREEN)
        argv = [sys.executable, "-I", "-m", "preflight.sweeping.child", str(os.getpid()), str(lock)]
        try:
            self._process = subprocess.Popen(
                [*argv, *words],
                cwd=cwd,
                env={**os.environ, "COLUMNS": "100", SWEEP: sweep},
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=screen,
                pass_fds=[lock],
                # Ctrl-C on our terminal is ours: we end the wave, in order, once.
                start_new_session=True,
            )
        finally:
            os.close(screen)

    def ended(self, wait_s: float) -> int | None:
        """Its exit status; None if it still runs after so long."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(wait_s)
        return None

    def stop(self) -> None:
        """Have it leave its nodes and write what it knows; then make it. Never raises."""
        if self._process.poll() is None:
            self._process.terminate()
            if self.ended(LEAVE_S) is None:
                self.kill()

    def kill(self) -> None:
        """End it and whatever it started here; its nodes end by themselves what runs there."""
        with suppress(ProcessLookupError):
            if self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    @property
    def phase(self) -> str:
        """What it does now, in its own words: "pairs    12/120  3.1 s"; "" if it does not say."""
        for line in reversed(self._last_lines()):
            if found := _PHASE.match(line):
                return " ".join(found[0].split())
        return ""

    @property
    def last_words(self) -> str:
        """The last line that it said."""
        return next((line for line in reversed(self._last_lines()) if line), "nothing")

    def report(self) -> Report:
        """What it found; WaveError if it left no report."""
        return read_report(self._folder)

    def _last_lines(self) -> list[str]:
        try:
            with (self._folder / SCREEN).open("rb") as screen:
                screen.seek(max(0, screen.seek(0, os.SEEK_END) - _TAIL))
                text = screen.read(_TAIL).decode("utf-8", "replace")
        except OSError:
            return []
        return [legible(line, 160) for line in text.splitlines()]


def read_report(folder: Path) -> Report:
    """Read a wave's report.json; WaveError in one line."""
    try:
        report = msgspec.json.decode(read_regular(folder / "report.json", LARGEST), type=Report)
        refuse_odd_names(report)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise WaveError(f"{folder / 'report.json'}: {reason}") from error
    return report
