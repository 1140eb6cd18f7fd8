"""`events.jsonl`: every verdict on disk when it is known, so that a killed run leaves what it knew.

A line is one JSON object, written in one piece and never touched again. The last one may be cut
where the machine died; whoever reads skips it.

What such a run had not judged yet was not run, and its exit code is that of an interrupted one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct

from preflight.check import Tier, subject
from preflight.core.files import open_new, read_regular
from preflight.core.registry import Entry, Ledger
from preflight.core.statistics import grouped
from preflight.core.text import escaped
from preflight.errors import UsageError
from preflight.report.document import SCHEMA as DOCUMENT_SCHEMA
from preflight.report.document import Report, VerdictRow, moment, refuse_odd_names, row_of
from preflight.report.findings import suspicions
from preflight.report.ready import fleet_row, of_entries, readiness
from preflight.report.schema_1 import event_from_schema_1, report_from_schema_1
from preflight.report.since import Night, nodes_of, verdict_of
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from preflight.verdict import Verdict


NAME = "events.jsonl"
SCHEMA = 2
EVERY_NODE = ("*",)
"""In place of the names where a verdict is expected on every node of the fleet."""

_AT_ONCE = 1000
"""Lines in one `write`, of what is known only when the run ends."""

Key = tuple[str, tuple[str, ...]]


class Began(Struct, frozen=True, kw_only=True, tag_field="event", tag="began"):
    """The first line: who is judged, and on what."""

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
        """ValueError for a time that no clock shows."""
        moment(self.started)


class Said(
    VerdictRow, frozen=True, kw_only=True, tag_field="event", tag="verdict", omit_defaults=True
):
    """One verdict, as in report.json; `evidence` only of what is not fine."""


class Ended(Struct, frozen=True, kw_only=True, tag_field="event", tag="ended"):
    """The last line of a run that came to its end: what later ones compare with."""

    night: Night


Event = Began | Said | Ended


class Events:
    """The file of one run. What cannot be written is given up, never the run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None
        self._said: set[Key] = set()

    def begin(self, began: Began) -> None:
        """Begin a new file; one of an earlier run is replaced, and a link is not followed."""
        try:
            self._handle = open_new(self.path)
        except OSError:
            return
        self._write(began)

    def verdict(self, check: str, nodes: tuple[str, ...], verdict: Verdict) -> None:
        """Write a verdict, once."""
        if self._handle is None or (check, nodes) in self._said:
            return
        self._said.add((check, nodes))
        self._write(_said(Entry(check, subject(nodes), nodes, verdict)))

    def end(self, entries: Iterable[Entry], night: Night) -> None:
        """Write what arrived on no other way, what is lost, and how the run ended."""
        left = [one for one in entries if (one.check, one.nodes) not in self._said]
        for at in range(0, len(left), _AT_ONCE):
            self._write(*map(_said, left[at : at + _AT_ONCE]))
        self._write(Ended(night=night))
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _write(self, *events: Event) -> None:
        """One `write`, so that its lines are there when the process is killed after it."""
        if self._handle is None:
            return
        content = b"".join(map(_line, events))
        before = os.fstat(self._handle).st_size
        try:
            if os.write(self._handle, content) == len(content):
                return
        except OSError:
            pass
        # A full disk takes half a line: better none.
        os.ftruncate(self._handle, before)
        self.close()


def _line(event: Event) -> bytes:
    return escaped(msgspec.json.encode(event).decode()).encode("ascii") + b"\n"


def _said(entry: Entry) -> Said:
    fine = entry.verdict.outcome in (Outcome.OK, Outcome.NOT_RUN)
    return row_of(Said, entry, entry.verdict, **({"evidence": {}} if fine else {}))


def expected_subjects(keys: Iterable[Key], nodes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """By check, the subjects on which a verdict is expected, as `Began.expected` holds them."""
    by_check = grouped((check, subject(names)) for check, names in keys)
    everyone = list(nodes)
    return {c: EVERY_NODE if own == everyone else tuple(own) for c, own in by_check.items()}


_DECODER = msgspec.json.Decoder(Event)


def read_events(content: bytes) -> list[Event]:
    """Read the lines; one that is cut or was written by a later preflight is left out."""
    return [event for line in content.splitlines() if (event := _event(line)) is not None]


def _event(line: bytes) -> Event | None:
    try:
        return cast("Event", _DECODER.decode(line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _old_event(line)


def _old_event(line: bytes) -> Event | None:
    try:
        old = msgspec.json.decode(line, type=dict[str, Any])
        return cast("Event", msgspec.convert(event_from_schema_1(old), type=Event))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


REPORT = "report.json"
_LARGEST = 1 << 30
_INTERRUPTED = 2


class _Dated(Struct, frozen=True):
    """What every schema says of itself."""

    schema: int
    preflight: str = "another version"


def reread(folder: Path) -> Report:
    """Read what a run left; UsageError for a folder of which nothing can be told."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: give a run's, such as preflight-runs/latest")
    path, content = folder / REPORT, _content(folder / REPORT)
    if content is not None:
        report = _written(path, content)
    else:
        path, content = folder / NAME, _content(folder / NAME)
        if content is None:
            raise UsageError(f"{folder} holds no {REPORT} and no {NAME}: {_instead(folder)}")
        report = _of_events(path, read_events(content))
    try:
        refuse_odd_names(report)
    except ValueError as error:
        raise UsageError(
            f"{path} is no report of this preflight ({error}): give another run"
        ) from error
    return report


def _written(path: Path, content: bytes) -> Report:
    try:
        dated = msgspec.json.decode(content, type=_Dated)
        if dated.schema == 1:
            old = msgspec.json.decode(content, type=dict[str, Any])
            return msgspec.convert(report_from_schema_1(old), type=Report)
        if dated.schema != DOCUMENT_SCHEMA:
            raise UsageError(
                f"{path} is of schema {dated.schema}, this preflight reads "
                f"{DOCUMENT_SCHEMA}: use the one that wrote it ({dated.preflight})"
            )
        return msgspec.json.decode(content, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{path} is no report of this preflight ({error}): give another run"
        ) from error


def _instead(folder: Path) -> str:
    """What to type where there is nothing; a sweep that was killed writes its report at its end."""
    waves = sorted(one.parent.name for one in folder.glob(f"wave-*/{REPORT}"))
    if not waves:
        return "give the folder of a run"
    ended = f"its waves have reports, as {folder / waves[0]}"
    return f"a sweep that did not end; preflight nightly --resume goes on with it, and {ended}"


def _content(path: Path) -> bytes | None:
    """None where there is no such file."""
    try:
        return read_regular(path, _LARGEST)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}; give another run") from error


def _of_events(path: Path, events: Sequence[Event]) -> Report:
    began = next((one for one in events if isinstance(one, Began)), None)
    if began is None:
        raise UsageError(f"{path} does not begin with a run: give another run")
    ended = next((one.night for one in events if isinstance(one, Ended)), None)
    entries = _entries(began, [one for one in events if isinstance(one, Said)])
    ready = readiness(began.nodes, entries, strict=False)
    return Report(
        preflight=began.preflight,
        run=began.run,
        started=began.started,
        seconds=ended.seconds if ended else 0.0,
        tier=began.tier,
        exit=ended.exit if ended else _INTERRUPTED,
        interrupted=ended is None,
        fleet=fleet_row(began.nodes, began.origin, ready, began.leaves),
        **of_entries(entries),
        pairs=(),
        blames=(),
        suspicions=tuple(suspicions(entries, len(began.nodes)).values()),
    )


def _entries(began: Began, said: Sequence[Said]) -> tuple[Entry, ...]:
    known = frozenset(began.nodes)
    ledger = Ledger()
    ledger.expect(
        (check, nodes_of(each, known))
        for check, subjects in began.expected.items()
        for each in (began.nodes if subjects == EVERY_NODE else subjects)
    )
    for one in said:
        ledger.record(one.check, nodes_of(one.subject, known), verdict_of(one))
    return ledger.settle("the run ended before it was judged, as when it is killed")
