"""The state of a nightly run, in `sweep.json` and on the screen.

The file is written whole after each step, so that a killed run can continue; later nights read
from it which nodes shared a wave. The screen shows a line when a wave begins, its findings, and a
line when it ends.
"""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from preflight.check import Tier
from preflight.commands.nightly.choice import MOST_COMPARED, Source, Wave, Waves
from preflight.core.command_line import columns
from preflight.core.files import file_errors, read_regular, write_atomically
from preflight.core.statistics import grouped
from preflight.core.text import count
from preflight.core.trust import who_may_change
from preflight.errors import UsageError
from preflight.fleet.nodeset import fold
from preflight.report.outputs import KEEP
from preflight.report.terminal import finding_line, labelled

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from preflight.report.document import FleetRow
    from preflight.report.findings import Finding


WAVE = re.compile(r"wave-\d{3,6}(-\d{1,3})?")
"""Name of the folder of a wave's try."""

SCHEMA, NAME, LARGEST = 1, "sweep.json", 64 << 20
TOO_OLD_S = 12 * 3600.0
"""An older run is not continued: the next night begins a new one, longest-waiting nodes first."""

Stand = Literal["waiting", "begun", "done", "broken off", "left out"]
"""`begun`: it runs now, or was killed. `broken off`: a job came, or the wave's process died."""

Name = Annotated[str, Meta(max_length=253)]


class WaveState(Struct, frozen=True, kw_only=True):
    """One wave and its progress."""

    nodes: tuple[Name, ...]
    stand: Stand = "waiting"
    folder: str = ""
    """Folder of its latest try, beside sweep.json; "" before the first."""
    tries: int = 0
    why: str = ""
    """Why it was broken off, or left out."""
    whole: bool = False
    """Every pair of its nodes was measured."""

    @property
    def open(self) -> bool:
        """Whether the wave is still to be run."""
        return self.stand in ("waiting", "begun")


class NightlyRun(Struct, frozen=True, kw_only=True):
    """The content of sweep.json."""

    schema: Annotated[int, Meta(ge=SCHEMA, le=SCHEMA)] = SCHEMA
    preflight: str
    sweep: str
    """Its random id."""
    started_s: float
    """Seconds since the epoch."""
    words: tuple[str, ...]
    """The options that every wave gets."""
    cwd: str
    """The folder that relative paths in `words` start from."""
    folders: tuple[str, ...] = ()
    """The site's own checks."""
    tier: Tier
    usual_s: float
    """A wave's time where the nightly run has enough."""
    most: int
    """Nodes of a wave."""
    source: Source = "all"
    reservation: str = ""
    """Where the choice of nodes comes from."""
    strict: bool = False
    metrics: str = ""
    exclude_file: str = ""
    """Files that the whole nightly run writes, not each wave; "" for none."""
    keep: int = KEEP
    """How many nightly runs keep their waves' folders."""
    nodes: tuple[Name, ...]
    """The fleet in order, including the nodes that are left out."""
    origin: str
    leaves: dict[str, str] = {}
    topology: str = ""
    left_out: dict[str, str] = {}
    """Nodes that are left out, and why."""
    waves: tuple[WaveState, ...] = ()
    ends_s: float | None = None
    """When the nightly run must end; None for no limit."""
    spent_s: float = 0.0
    """Seconds that it ran, in all calls together."""
    written_s: float = 0.0
    """When it was written last, seconds since the epoch."""
    finished: bool = False
    """No wave is left to run."""

    def write(self, folder: Path) -> None:
        """Write the file atomically; OSError if that fails."""
        content = msgspec.json.format(msgspec.json.encode(self), indent=1)
        write_atomically(folder / NAME, content + b"\n")


class NightlyState:
    """The state of a running nightly run. Every change is written; OSError where that fails."""

    def __init__(self, folder: Path, nightly: NightlyRun) -> None:
        self.folder = folder
        self.nightly = nightly
        self._spent_before_s = nightly.spent_s
        self._began = time.monotonic()
        self.took_s: list[float] = []
        """Seconds that each wave of this call took."""

    def set_wave(self, number: int, **changes: object) -> None:
        """Change one wave."""
        waves = list(self.nightly.waves)
        waves[number] = replace(waves[number], **changes)
        self.nightly = replace(self.nightly, waves=tuple(waves))
        self.write()

    def leave_out(self, number: int, reasons: Mapping[str, str]) -> None:
        """Take nodes out of a wave; a wave without nodes is left out itself."""
        nodes = tuple(name for name in self.nightly.waves[number].nodes if name not in reasons)
        self.nightly = replace(self.nightly, left_out={**self.nightly.left_out, **reasons})
        changes: dict[str, object] = {"nodes": nodes}
        if not nodes:
            changes = {"stand": "left out", "why": "each of its nodes is in use"}
        self.set_wave(number, **changes)

    def add(self, waves: Iterable[Wave], nodes: Collection[str]) -> None:
        """Add waves of nodes that were left out before."""
        self.nightly = replace(
            self.nightly,
            left_out={n: why for n, why in self.nightly.left_out.items() if n not in nodes},
            waves=(*self.nightly.waves, *(WaveState(nodes=wave) for wave in waves)),
        )
        self.write()

    def write(self) -> None:
        """Write the state, with the time spent so far."""
        has_open = any(wave.open or wave.stand == "broken off" for wave in self.nightly.waves)
        self.nightly = replace(
            self.nightly,
            spent_s=round(self._spent_before_s + time.monotonic() - self._began, 1),
            written_s=time.time(),
            finished=not has_open,
        )
        self.nightly.write(self.folder)

    @property
    def open_waves(self) -> list[int]:
        """The waves that are still to run, by their place among all."""
        return [place for place, wave in enumerate(self.nightly.waves) if wave.open]

    @property
    def left_s(self) -> float | None:
        """Time until the nightly run must end; None for no limit."""
        return None if self.nightly.ends_s is None else self.nightly.ends_s - time.time()

    @property
    def estimated_end(self) -> datetime | None:
        """When all will be done, estimated from the waves so far; None before the first."""
        if not self.took_s:
            return None
        left_s = len(self.open_waves) * sum(self.took_s) / len(self.took_s)
        return clock(left_s if self.left_s is None else min(left_s, max(0.0, self.left_s)))

    def label(self, number: int) -> str:
        """Return a wave's number, counted from 1: "3/12"."""
        return f"{number + 1}/{len(self.nightly.waves)}"


BEGIN_NEW = "leave out --resume to begin a new nightly run"
"""What to do about a refused sweep.json; replaced where a new nightly run begins anyway."""


Night = tuple[WaveState, ...]
"""The waves of an earlier night that were done."""


def read_nightly_run(folder: Path) -> NightlyRun:
    """Read a nightly run's folder; UsageError if it holds no nightly run, or a damaged one.

    Root refuses a file that another user may change, as it holds options to run.
    """
    path = folder / NAME
    if os.geteuid() == 0 and (risk := who_may_change(path)):
        raise UsageError(f"root does not continue by {path}: {risk}; {BEGIN_NEW}")
    with file_errors(f"cannot read the nightly run {path}", BEGIN_NEW):
        return msgspec.json.decode(read_regular(path, LARGEST), type=NightlyRun)


def latest_nightly_run(into: Path) -> tuple[Path, NightlyRun] | None:
    """Return the nightly run that began last, or None; UsageError if it cannot be read."""
    folders = nightly_folders(into)
    return (folders[0], read_nightly_run(folders[0])) if folders else None


def waves_of(nights: Iterable[Night]) -> tuple[Waves, ...]:
    """Return which nodes were checked together in each night."""
    return tuple(tuple(wave.nodes for wave in night) for night in nights)


def former_nights(into: Path, *, except_id: str = "") -> tuple[Night, ...]:
    """Return the done waves of earlier nights, the latest first; damaged files are skipped.

    `except_id`: the id of the current nightly run, which is left out.
    """
    nights: list[Night] = []
    for folder in nightly_folders(into)[:MOST_COMPARED]:
        with suppress(UsageError):
            night = read_nightly_run(folder)
            waves = tuple(wave for wave in night.waves if wave.stand == "done")
            if waves and night.sweep != except_id:
                nights.append(waves)
    return tuple(nights)


def nightly_folders(into: Path) -> list[Path]:
    """Return the folders of all nightly runs, the latest first, without links."""
    try:
        folders = [path.parent for path in into.glob(f"*/{NAME}") if not path.parent.is_symlink()]
    except OSError:
        return []
    return sorted(folders, key=lambda path: path.name, reverse=True)


_LABEL = 11
_NARROWEST = 40


class Screen:
    """Prints lines; on a terminal, rewrites the line of the running wave."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._shown_width = 0
        self.width = max(_NARROWEST, columns())

    def line(self, text: str = "") -> None:
        """Print a line unchanged."""
        width, self._shown_width = self._shown_width, 0
        clear = f"\r{' ' * width}\r" if width else ""
        self._write(f"{clear}{text}\n")

    def labelled(self, label: str, text: str) -> None:
        """Print a label and its text, wrapped."""
        for line in labelled(label, text, self.width):
            self.line(line)

    def show_start(self, number: int, nodes: Sequence[str], state: NightlyState) -> None:
        """Print which wave begins, how many nodes follow it, and when all will be done."""
        nodes_left = sum(len(wave.nodes) for wave in state.nightly.waves[number + 1 :] if wave.open)
        following = f"{nodes_left} after them" if nodes_left else "the last ones"
        end = f", all done at about {state.estimated_end:%H:%M}" if state.estimated_end else ""
        words = f"{fold(nodes)}  {count(len(nodes), 'node')}, {following}{end}"
        self.labelled(f"wave {state.label(number)}", words)

    def show_phase(self, label: str, since_s: float, phase: str) -> None:
        """Rewrite the line of the running wave; does nothing without a terminal."""
        if self._is_terminal:
            text = f"wave {label}  {timedelta(seconds=int(since_s))}  {phase}"[: self.width - 1]
            self._write(f"\r{text.ljust(self._shown_width)}")
            self._shown_width = len(text)

    def show_findings(self, findings: Sequence[Finding]) -> None:
        """Print the findings that make nodes not ready, each cause in one line."""
        for finding in (finding for finding in findings if finding.makes_not_ready):
            nodes = frozenset(name for name in finding.subjects if "-" not in name)
            self.line(" " * _LABEL + finding_line(finding, nodes, self.width - _LABEL))

    def show_end(self, fleet: FleetRow, seconds: float) -> None:
        """Print the result of a wave."""
        counts = ((len(fleet.ready), "ready"), (len(fleet.not_ready), "not ready"),
                  (len(fleet.unjudged), "not judged"))  # fmt: skip
        text = ", ".join(f"{number} {word}" for number, word in counts if number)
        self.labelled("", f"{text}  {seconds:.0f} s")

    def show_left_out(self, reasons: Mapping[str, str], *, suffix: str = "") -> None:
        """Print the nodes that are left out; those with the same reason in one line."""
        for reason, names in grouped((reason, name) for name, reason in reasons.items()).items():
            self.labelled("left out", f"{fold(names)}  {len(names)}{suffix}: {reason}")

    def _write(self, text: str) -> None:
        """Print text; a closed terminal or a full disk costs these lines, but not the night."""
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError:
            # Buffered output would fail once more at exit and change the exit code.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._is_terminal = False


def clock(seconds_from_now: float) -> datetime:
    """Return the local time in so many seconds."""
    return datetime.fromtimestamp(time.time() + seconds_from_now).astimezone()
