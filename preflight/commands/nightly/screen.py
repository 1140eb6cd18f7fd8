"""What a sweep shows while it goes on: a line as a wave begins, its findings, a line as it ends."""

from __future__ import annotations

import os
import shutil
import sys
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from preflight.core.text import printable, wrapped
from preflight.fleet.nodeset import fold
from preflight.report.terminal import finding_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.report.document import FleetRow
    from preflight.report.findings import Finding

_LABEL = 11
_WIDEST, _NARROWEST = 100, 40


class Screen:
    """Lines on standard output; on a terminal, the one of a wave that runs is rewritten."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._shown = 0
        self.width = max(_NARROWEST, min(shutil.get_terminal_size().columns, _WIDEST))

    def line(self, text: str = "") -> None:
        """Print a line as it is."""
        self._write(f"{self._cleared()}{text}\n")

    def labelled(self, label: str, text: str) -> None:
        """Print a label and what it is about, wrapped."""
        first, indent = f"{label:<{_LABEL}}", " " * _LABEL
        for line in wrapped(text, first=first, indent=indent, width=self.width):
            self.line(line)

    def title(self, text: str) -> None:
        """Head the summary."""
        self.line(f" {text} ".center(self.width, "="))

    def header(self, rows: Sequence[tuple[str, str]]) -> None:
        """Say who is swept, how, until when, and where it is written."""
        for label, text in rows:
            self.labelled(label, text)
        self.line()

    def begins(self, at: str, nodes: Sequence[str], left: int, done_at: datetime | None) -> None:
        """Say which wave begins, how many nodes come after it, and when all will be done."""
        after = f"{left} after them" if left else "the last ones"
        about = f", all done about {done_at:%H:%M}" if done_at else ""
        self.labelled(f"wave {at}", f"{fold(nodes)}  {_nodes(len(nodes))}, {after}{about}")

    def goes_on(self, at: str, since_s: float, phase: str) -> None:
        """Rewrite the line of the wave that runs; nothing where nobody watches."""
        if self._live:
            text = f"wave {at}  {timedelta(seconds=int(since_s))}  {phase}"[: self.width - 1]
            self._write(f"\r{text.ljust(self._shown)}")
            self._shown = len(text)

    def found(self, findings: Sequence[Finding]) -> None:
        """Show what a wave condemns, each cause in a line or two."""
        for one in (each for each in findings if each.condemns):
            nodes = all("-" not in name for name in one.subjects)
            about = fold(one.subjects) if nodes else ", ".join(map(printable, one.subjects[:4]))
            words = finding_line(one.outcome, about, one.check, one.sentence)
            indent = " " * (_LABEL + 7)
            for line in wrapped(words, first=" " * _LABEL, indent=indent, width=self.width):
                self.line(line)

    def ends(self, fleet: FleetRow, seconds: float) -> None:
        """Say how a wave came out."""
        counts = ((len(fleet.ready), "ready"), (len(fleet.not_ready), "not ready"),
                  (len(fleet.unjudged), "not judged"))  # fmt: skip
        said = ", ".join(f"{number} {word}" for number, word in counts if number)
        self.labelled("", f"{said}  {seconds:.0f} s")

    def left_out(self, why: Mapping[str, str], *, after: str = "") -> None:
        """Name nodes that are not looked at; those with one reason in one line."""
        by_reason: dict[str, list[str]] = {}
        for name, reason in why.items():
            by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            self.labelled("left out", f"{fold(names)}  {len(names)}{after}: {reason}")

    def _cleared(self) -> str:
        shown, self._shown = self._shown, 0
        return f"\r{' ' * shown}\r" if shown else ""

    def _write(self, text: str) -> None:
        """A terminal that is gone, a full disk: costs these lines, and not the night."""
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError:
            # What is held back would fail once more at the end, and change the exit code.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._live = False


def clock(seconds_from_now: float) -> datetime:
    """The time on the wall after so long."""
    return datetime.fromtimestamp(time.time() + seconds_from_now).astimezone()


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"
