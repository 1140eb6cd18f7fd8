"""A run's report from its folder: as it was written, or of a killed run from its events.

What such a run had not judged yet was not run, and its exit code is that of an interrupted one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from preflight.check import FLEET
from preflight.errors import UsageError
from preflight.fleet.files import read_regular
from preflight.ledger import Entry, Ledger
from preflight.report.document import SCHEMA, Report, refuse_odd_names
from preflight.report.events import EVERY_NODE, NAME, Began, Ended, Said, read_events
from preflight.report.findings import counts, suspicions
from preflight.report.ready import readiness
from preflight.report.rebuilt import verdict_of
from preflight.report.rows import fleet_row, verdict_row
from preflight.report.since import nodes_in
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from preflight.report.events import Event, Key

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
        if dated.schema != SCHEMA:
            raise UsageError(
                f"{path} is of schema {dated.schema}, this preflight reads {SCHEMA}: use the one "
                f"that wrote it ({dated.preflight})"
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
    return f"a sweep that did not end; preflight sweep --resume goes on with it, and {ended}"


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
    by_outcome = counts(entries)
    return Report(
        preflight=began.preflight,
        run=began.run,
        started=began.started,
        seconds=ended.seconds if ended else 0.0,
        tier=began.tier,
        exit=ended.exit if ended else _INTERRUPTED,
        interrupted=ended is None,
        fleet=fleet_row(began.nodes, began.origin, ready, began.leaves),
        expected=len(entries),
        lost=by_outcome[Outcome.LOST],
        counts={str(outcome): number for outcome, number in by_outcome.items()},
        verdicts=tuple(map(verdict_row, entries)),
        pairs=(),
        blames=(),
        suspicions=tuple(suspicions(entries, len(began.nodes)).values()),
    )


def _entries(began: Began, said: Sequence[Said]) -> tuple[Entry, ...]:
    known = frozenset(began.nodes)
    ledger = Ledger()
    ledger.expect(_owed(began, known))
    for one in said:
        ledger.record(one.check, _nodes(one.subject, known), verdict_of(one))
    return ledger.settle("the run ended before it was judged, as when it is killed")


def _owed(began: Began, known: frozenset[str]) -> Iterator[Key]:
    for check, subjects in began.owed.items():
        for subject in began.nodes if subjects == EVERY_NODE else subjects:
            yield check, _nodes(subject, known)


def _nodes(subject: str, known: frozenset[str]) -> tuple[str, ...]:
    return () if subject == FLEET else tuple(nodes_in(subject, known))
