"""`events.jsonl`: each verdict is on disk as soon as it is known, also if the run is killed.

A line is one JSON object, written in one piece and never changed. If the machine dies, the last
line may be cut off; readers skip it.

What a killed run had not judged yet is `not_run`, and its exit code is that of an interrupted run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from preflight.check import Tier, subject
from preflight.core.command_line import INTERRUPTED
from preflight.core.files import file_errors, is_folder, open_new, read_regular
from preflight.core.registry import Entry, Ledger
from preflight.core.statistics import grouped
from preflight.core.text import escape_json
from preflight.errors import UsageError
from preflight.report.document import SCHEMA as DOCUMENT_SCHEMA
from preflight.report.document import Report, VerdictRow, moment, refuse_odd_names, row_of
from preflight.report.findings import suspicions
from preflight.report.ready import fleet_row, readiness, verdict_fields
from preflight.report.since import RunSummary, nodes_of, verdict_of
from preflight.verdict import Outcome, Verdict

NAME = "events.jsonl"
SCHEMA = 2
EVERY_NODE = ("*",)
"""Stands for the names of all nodes, if a check is expected on every node of the fleet."""

_LINES_PER_WRITE = 1000
"""Lines in one `write`, for verdicts that are known only when the run ends."""

_MOST_UNJUDGED = 1 << 20
"""Most verdicts that a killed run can lack: 128 checks on each of 8,192 nodes."""

Key = tuple[str, tuple[str, ...]]


class Began(Struct, frozen=True, kw_only=True, tag_field="event", tag="began"):
    """The first line: the nodes, and the expected verdicts."""

    schema: int = SCHEMA
    preflight: str
    run: str
    started: str
    tier: Tier
    nodes: tuple[str, ...]
    origin: str
    leaves: dict[str, str] = {}
    expected: dict[str, tuple[str, ...]]
    """By check, the subjects on which a verdict is expected; `EVERY_NODE` for all nodes."""

    def __post_init__(self) -> None:
        """ValueError for an invalid start time."""
        moment(self.started)


class VerdictEvent(
    VerdictRow, frozen=True, kw_only=True, tag_field="event", tag="verdict", omit_defaults=True
):
    """One verdict, as in report.json; without `evidence` if it is `ok` or `not_run`."""


class Ended(Struct, frozen=True, kw_only=True, tag_field="event", tag="ended"):
    """The last line of a run that was not killed: what later runs compare with."""

    night: RunSummary


Event = Began | VerdictEvent | Ended


class Events:
    """The file of one run. If it cannot be written, it is given up, and the run goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None
        self._recorded: set[Key] = set()

    def begin(self, began: Began) -> None:
        """Begin a new file; an earlier run's file is replaced, and a link is not followed."""
        try:
            self._handle = open_new(self.path)
        except OSError:
            return
        self._write(began)

    def verdict(self, check: str, nodes: tuple[str, ...], verdict: Verdict) -> None:
        """Write a verdict, once."""
        if self._handle is None or (check, nodes) in self._recorded:
            return
        self._recorded.add((check, nodes))
        self._write(_verdict_event(Entry(check, subject(nodes), nodes, verdict)))

    def end(self, entries: Iterable[Entry], night: RunSummary) -> None:
        """Write the verdicts that are not written yet, missing ones too, and how the run ended."""
        pending = [entry for entry in entries if (entry.check, entry.nodes) not in self._recorded]
        for start in range(0, len(pending), _LINES_PER_WRITE):
            self._write(*map(_verdict_event, pending[start : start + _LINES_PER_WRITE]))
        self._write(Ended(night=night))
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _write(self, *events: Event) -> None:
        """Write lines in one `write`, so that they are there if the process is killed after it."""
        if self._handle is None:
            return
        content = b"".join(map(_line, events))
        size = os.fstat(self._handle).st_size
        try:
            if os.write(self._handle, content) == len(content):
                return
        except OSError:
            pass
        # A full disk may have taken half a line: remove it.
        os.ftruncate(self._handle, size)
        self.close()


def _line(event: Event) -> bytes:
    return escape_json(msgspec.json.encode(event).decode()).encode("ascii") + b"\n"


def _verdict_event(entry: Entry) -> VerdictEvent:
    is_fine = entry.verdict.outcome in (Outcome.OK, Outcome.NOT_RUN)
    return row_of(VerdictEvent, entry, entry.verdict, **({"evidence": {}} if is_fine else {}))


def by_check(keys: Iterable[Key], nodes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """By check, the subjects of the expected verdicts; `EVERY_NODE` for all nodes."""
    subjects = grouped((check, subject(names)) for check, names in keys)
    all_nodes = list(nodes)
    return {c: EVERY_NODE if group == all_nodes else tuple(group) for c, group in subjects.items()}


_DECODER = msgspec.json.Decoder(Event)


def read_events(content: bytes) -> list[Event]:
    """Read the lines; skips a line that is cut off, or that a later preflight wrote."""
    return [event for line in content.splitlines() if (event := _event(line)) is not None]


def _event(line: bytes) -> Event | None:
    try:
        event: Event = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return event


REPORT = "report.json"
_LARGEST = 1 << 30


class _Dated(Struct, frozen=True):
    """The fields that every schema has."""

    schema: int
    preflight: str = "another version"


def reread(folder: Path) -> Report:
    """Read the report of a run, or its events; UsageError for a folder that has neither."""
    if not is_folder(folder):
        raise UsageError(f"{folder} is not a folder: give the folder of a run")
    path, content = folder / REPORT, _content(folder / REPORT)
    if content is not None:
        report = decode_report(path, content)
    else:
        path, content = folder / NAME, _content(folder / NAME)
        if content is None:
            raise UsageError(f"{folder} holds no {REPORT} and no {NAME}: {_advice(folder)}")
        report = _rebuild_report(path, read_events(content))
    with file_errors(f"{path} is not a report of this preflight", "give another run"):
        refuse_odd_names(report)
    return report


def decode_report(path: Path, content: bytes) -> Report:
    """Decode a report.json of this schema; UsageError for any other content."""
    with file_errors(f"{path} is not a report of this preflight", "give another run"):
        dated = msgspec.json.decode(content, type=_Dated)
        if dated.schema != DOCUMENT_SCHEMA:
            raise UsageError(
                f"{path} is of schema {dated.schema}, this preflight reads "
                f"{DOCUMENT_SCHEMA}: use the one that wrote it ({dated.preflight})"
            )
        return msgspec.json.decode(content, type=Report)


def _advice(folder: Path) -> str:
    """What to type instead; a sweep that was killed has no report, but its waves have."""
    waves = sorted(path.parent.name for path in folder.glob(f"wave-*/{REPORT}"))
    if not waves:
        return "give the folder of a run"
    ended = f"its waves have reports, as {folder / waves[0]}"
    return f"a sweep that did not end; preflight nightly --resume goes on with it, and {ended}"


def _content(path: Path) -> bytes | None:
    """The file's content; None if there is no such file."""
    with file_errors(f"cannot read {path}", "give another run"), suppress(FileNotFoundError):
        return read_regular(path, _LARGEST)
    return None


def _rebuild_report(path: Path, events: Sequence[Event]) -> Report:
    began = next((event for event in events if isinstance(event, Began)), None)
    if began is None:
        raise UsageError(f"{path} does not begin with a run: give another run")
    verdicts = [event for event in events if isinstance(event, VerdictEvent)]
    _refuse_endless(path, began, len(verdicts))
    ended = next((event.night for event in events if isinstance(event, Ended)), None)
    entries = _entries(began, verdicts)
    ready = readiness(began.nodes, entries, strict=False)
    return row_of(
        Report,
        began,
        schema=DOCUMENT_SCHEMA,
        seconds=ended.seconds if ended else 0.0,
        exit=ended.exit if ended else INTERRUPTED,
        interrupted=ended is None,
        fleet=fleet_row(began.nodes, began.origin, ready, began.leaves),
        **verdict_fields(entries),
        pairs=(),
        blames=(),
        suspicions=tuple(suspicions(entries, len(began.nodes)).values()),
    )


def _refuse_endless(path: Path, began: Began, known: int) -> None:
    """UsageError for more verdicts than a run has: a few characters stand for every node's."""
    expected = sum(
        len(began.nodes if subjects == EVERY_NODE else subjects)
        for subjects in began.expected.values()
    )
    if expected > known + _MOST_UNJUDGED:
        raise UsageError(
            f"{path} expects {expected:,} verdicts and has {known:,}, a killed run lacks at most "
            f"{_MOST_UNJUDGED:,}: give another run"
        )


def _entries(began: Began, verdicts: Sequence[VerdictEvent]) -> tuple[Entry, ...]:
    nodes = frozenset(began.nodes)
    ledger = Ledger()
    ledger.expect(
        (check, nodes_of(name, nodes))
        for check, subjects in began.expected.items()
        for name in (began.nodes if subjects == EVERY_NODE else subjects)
    )
    for row in verdicts:
        ledger.record(row.check, nodes_of(row.subject, nodes), verdict_of(row))
    return ledger.settle("the run ended before it was judged, as when it is killed")
