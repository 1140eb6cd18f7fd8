"""`events.jsonl`: every verdict on disk when it is known, so that a killed run leaves what it knew.

A line is one JSON object, written in one piece and never touched again. The last one may be cut
where the machine died; whoever reads skips it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from preflight.check import FLEET, Tier, subject
from preflight.ledger import Entry
from preflight.report.document import VerdictRow, moment
from preflight.report.files import open_new
from preflight.report.night import Night
from preflight.report.plain import escaped
from preflight.report.rows import verdict_row
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from preflight.verdict import Verdict

NAME = "events.jsonl"
SCHEMA = 1
EVERY_NODE = ("*",)
"""In place of the names where a check is owed on every node of the fleet."""

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
    owed: dict[str, tuple[str, ...]]
    """By check, the subjects on which a verdict is owed; `EVERY_NODE` for all nodes."""

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
    row = verdict_row(entry)
    fine = row.outcome in (Outcome.OK, Outcome.NOT_RUN)
    return Said(
        check=row.check,
        subject=row.subject,
        outcome=row.outcome,
        sentence=row.sentence,
        advice=row.advice,
        evidence={} if fine else row.evidence,
        blame=row.blame,
        culprits=row.culprits,
        suspects=row.suspects,
        cause=row.cause,
        grant=row.grant,
    )


def owed(keys: Iterable[Key], nodes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Say in few words on whom a verdict is owed."""
    by_check: dict[str, list[str]] = {}
    for check, names in keys:
        by_check.setdefault(check, []).append(subject(names) if names else FLEET)
    everyone = list(nodes)
    return {c: EVERY_NODE if own == everyone else tuple(own) for c, own in by_check.items()}


_DECODER = msgspec.json.Decoder(Event)


def read_events(content: bytes) -> list[Event]:
    """Read the lines; one that is cut or was written by a later preflight is left out."""
    found: list[Event] = []
    for line in content.splitlines():
        try:
            found.append(_DECODER.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return found
