"""Checks as pytest items, named by check id and subject, and their progress on the terminal."""

from __future__ import annotations

import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Struct

from preflight.check import FLEET, subject
from preflight.core.statistics import grouped
from preflight.core.text import count, printable, wrapped
from preflight.fleet.nodeset import fold
from preflight.report.ready import excluded
from preflight.run.measured import Progress
from preflight.verdict import WORST_FIRST, Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from preflight.core.registry import Registered
    from preflight.report.document import FleetRow
    from preflight.run.judgement import Key
    from preflight.run.run import Run


GROUP_ABOVE = 20_000
"""Expected verdicts above which there is one item per check and group instead of per subject."""


class ItemVerdict(Struct, frozen=True):
    """A verdict of an item, as it travels from an xdist worker."""

    check: str
    nodes: tuple[str, ...]
    verdict: Verdict


class FailedVerdict(Exception):  # noqa: N818  it is a finding about a node, not an error of ours
    """Carries a verdict that fails its item; shown as a sentence, never as a traceback."""


class CheckFile(pytest.File):
    """One file of `checks/`: an item per subject, or per group of subjects in large fleets."""

    run: Run
    checks: list[Registered]
    grouped: bool

    def collect(self) -> Iterator[CheckItem]:
        """Make the items; measures nothing."""
        for registered in self.checks:
            yield from self._items(registered)

    def _items(self, registered: Registered) -> Iterator[CheckItem]:
        keys = self.run.expected([registered.check.id])
        for label, item_keys in self._split(registered, keys):
            name = f"{registered.check.id}[{label}]"
            # pytest 9.2 splits node ids and would take `a[b]` for a name without parameters;
            # --lf then does not find its failures again.
            item = CheckItem.from_parent(self, name=name, nodeid=f"{self.nodeid}::{name}")
            item.run, item.keys = self.run, item_keys
            item.extra_keyword_matches.add(f"test_{registered.check.id.replace('.', '_')}")
            item.add_marker("preflight")
            item.add_marker(f"preflight_{registered.check.stage}")
            yield item

    def _split(
        self, registered: Registered, keys: Sequence[Key]
    ) -> Iterator[tuple[str, list[Key]]]:
        if not self.grouped:
            for key in keys:
                yield subject(key[1]), [key]
            return
        # A group's name is free text of the inventory; ids are shown, pasted and parsed.
        group_of = {h.name: re.sub(r"[^\w.-]+", "_", h.group) for h in self.run.fleet.hosts}
        single_label = {"pair": "pairs", "fleet": FLEET}.get(registered.subject)
        yield from grouped((single_label or group_of[key[1][0]], key) for key in keys).items()


class CheckItem(pytest.Item):
    """Asks the run for its verdicts; all measuring is done before the first item runs."""

    run: Run
    keys: list[Key]
    verdicts: Sequence[ItemVerdict] = ()

    def runtest(self) -> None:
        """Pass, skip or fail by the worst verdict."""
        self.verdicts = [ItemVerdict(*key, self.run.judgement.verdict(*key)) for key in self.keys]
        verdicts = (row.verdict for row in self.verdicts)
        worst = min(verdicts, key=lambda verdict: WORST_FIRST.index(verdict.outcome))
        self.user_properties.append(("preflight_outcome", str(worst.outcome)))
        self.user_properties.append(("preflight_sentence", printable(worst.sentence)))
        if worst.outcome is Outcome.NOT_RUN:
            pytest.skip(printable(worst.sentence))
        if worst.makes_not_ready or worst.outcome in (Outcome.BROKEN, Outcome.MISSING):
            raise FailedVerdict(_failure_text(worst))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *_: Any) -> str:
        """Show a finding as its sentence; only an error of preflight shows a traceback."""
        if isinstance(excinfo.value, FailedVerdict):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """The item's title; pytest's listing would turn the id's dots into colons."""
        return self.path, 0, self.name.replace("[", " on ").rstrip("]")


def _failure_text(verdict: Verdict) -> str:
    advice = f"\ndo: {printable(verdict.advice)}" if verdict.advice else ""
    trace = verdict.evidence.get("traceback", "") if verdict.outcome is Outcome.BROKEN else ""
    return f"{verdict.outcome}: {printable(verdict.sentence)}{advice}\n{trace}".rstrip()


_COLOURS = {
    "red": ("FAIL", "FLAKY", "UNKN", "BROKE", "MISSING", "not ready", "apart"),
    "yellow": ("WARN", "WAIVED", "not judged", "left out"),
    "green": ("ready",),
}
"""The first words of a line that have a colour on a terminal."""


def write_coloured(terminal: pytest.TerminalReporter, line: str) -> None:
    """Write a line of findings or of the summary; pytest knows whether colours are wanted."""
    terminal.ensure_newline()
    for colour, words in _COLOURS.items():
        for word in words:
            if line.startswith(f"{word} "):
                terminal.write(word, bold=True, **{colour: True})
                line = line[len(word) :]
    terminal.line(line)


_MOST_NAMED = 8
"""Most nodes that a progress line names as waited for; more are counted."""

_BAR_COLUMNS = 20
"""Columns of the bar."""


class TerminalProgress(Progress):
    """Rewrites one line with a bar on a terminal; elsewhere prints one when a phase takes long."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal
        self._live = terminal.isatty and terminal.verbosity >= 0
        self._lock = threading.Lock()
        self._started_at: dict[str, float] = {}
        self._printed_at: dict[str, float] = {}
        self._width = 0
        file = terminal._tw._file  # noqa: SLF001  pytest offers no other way
        unicode = (getattr(file, "encoding", None) or "").lower().startswith("utf")
        self._bar_signs = ("█", "░") if unicode else ("#", "-")

    def step(self, phase: str, done: int, total: int, waiting: Sequence[str]) -> None:
        """Show how far a phase is; without a terminal, at its end and every ten seconds."""
        now = time.monotonic()
        with self._lock:
            took = now - self._started_at.setdefault(phase, now)
            text = f"{phase:<8} {done}/{total}  "
            if self._live and done < total:
                text += f"{self._bar(done, total)}  {done / took if took else 0:.3g}/s  "
            text += f"{took:.1f} s"
            if done == total:
                waiting = ()
            if waiting and len(waiting) <= _MOST_NAMED:
                text += f"  waiting for {fold(waiting)}"
            elif waiting:
                text += f"  waiting for {len(waiting)} nodes"
            if self._live:
                self._rewrite(text, last=done == total)
            elif self._terminal.verbosity >= 0 and self._is_due(phase, now, last=done == total):
                self._terminal.write_line(text)

    def _bar(self, done: int, total: int) -> str:
        filled = _BAR_COLUMNS * done // max(total, 1)
        full, empty = self._bar_signs
        return f"[{full * filled}{empty * (_BAR_COLUMNS - filled)}]"

    def line(self, text: str) -> None:
        """Print a line that stays."""
        with self._lock:
            if self._live and self._width:
                self._terminal.rewrite(" " * self._width)
                self._terminal.rewrite("")
                self._width = 0
            if self._terminal.verbosity >= -1:
                width = self._terminal._tw.fullwidth  # noqa: SLF001  pytest offers no other way
                for piece in wrapped(text, first="", indent=" " * 7, width=width):
                    write_coloured(self._terminal, piece)

    def _rewrite(self, text: str, *, last: bool) -> None:
        cut = text[: self._terminal._tw.fullwidth - 1]  # noqa: SLF001  pytest offers no other way
        self._terminal.rewrite(cut.ljust(self._width))
        self._width = len(cut)
        if last:
            self._terminal.write_line("")
            self._width = 0

    def _is_due(self, phase: str, now: float, *, last: bool) -> bool:
        """Whether to print: every ten seconds while a phase lasts, and once at its end."""
        previous = self._printed_at.get(phase, self._started_at[phase])
        if previous < 0 or not (last or now - previous >= 10):  # noqa: PLR2004  seconds
            return False
        self._printed_at[phase] = -1.0 if last else now
        return True


VERY_QUIET = -2
"""pytest's verbosity at -qq."""

_CONCLUSIVE_EXITS = (0, 1)


def is_very_quiet(config: pytest.Config) -> bool:
    """Whether -qq was given."""
    return config.get_verbosity() <= VERY_QUIET


def send_to_stderr(config: pytest.Config, terminal: pytest.TerminalReporter) -> None:
    """Have pytest write to standard error: a crash must be seen there."""
    from _pytest.config import create_terminal_writer

    terminal._tw = create_terminal_writer(config, sys.stderr)  # noqa: SLF001  it has no option


def print_excluded(fleet: FleetRow, exit_code: int) -> None:
    """Print the nodes to leave out in one line, or nothing if there are none.

    If not everything was judged, the line is incomplete: standard error says so.
    """
    if nodes := excluded(fleet):
        sys.stdout.write(f"{nodes}\n")
        sys.stdout.flush()
    if fleet.unjudged and exit_code in _CONCLUSIVE_EXITS:
        unjudged = count(len(fleet.unjudged), "node")
        hint = "to judge all nodes: --preflight-fail-fast=never"
        sys.stderr.write(f"preflight: {unjudged} not judged and not in this list; {hint}\n")
    if exit_code not in _CONCLUSIVE_EXITS:
        sys.stderr.write(f"preflight: exit {exit_code}, not all was judged; run without -qq\n")
