"""An archive of `preflight capture`, part by part: facts as facts, texts as pasted texts are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from preflight.commands.placing import hosts_of
from preflight.commands.read_judged import fact_checks
from preflight.commands.verdicts import judge_stored, names_nobody
from preflight.errors import UsageError
from preflight.fabric.stored import stored_in
from preflight.facts.model import WIRE, Facts
from preflight.ledger import Entry
from preflight.offline.archive import unpack
from preflight.offline.captured import Captured, bare_facts
from preflight.offline.kernel_log import TELLS_NOTHING
from preflight.offline.readers import captured
from preflight.verdict import unknown

if TYPE_CHECKING:
    from preflight.offline.archive import Part

FACTS, LOG = "facts of a node", "NCCL log"
MEASURED = "run/measured.json"
_SWEEP = "fabric.allreduce"
_KEPT = {MEASURED: "measurements of a run", "run/report.json": "report of a run"}


def read_archive(
    name: str, content: bytes, *, alone: bool
) -> tuple[dict[str, Captured], tuple[Entry, ...]]:
    """Return the parts by name, and what the samples of the run say; UsageError names the archive.

    `alone`: nothing else is read, so that parts need not say whose they are. A part that is kept
    for people (a log, a report) has no checks.
    """
    try:
        archive = unpack(content)
    except UsageError as error:
        raise UsageError(f"cannot read {name}: {error}") from error
    whose = "" if alone else f"{name}: "
    parts = {
        whose + part.name: _captured(part, archive.files[part.name])
        for part in archive.manifest.parts
        if part.name in archive.files
    }
    lacking = {part.name: part.error for part in archive.manifest.parts if part.error}
    for name_of, why in lacking.items():
        if name_of.endswith("/facts.json"):
            parts[whose + name_of] = _lost(f"its node gave none: {why}")
    return parts, _swept(whose + MEASURED, archive.files.get(MEASURED, b""), lacking.get(MEASURED))


def _captured(part: Part, content: bytes) -> Captured:
    if part.name.endswith("/facts.json"):
        return _facts(content)
    text = content.decode("utf-8", "replace")
    found = captured(text) if part.name.endswith(".txt") else None
    # Only some lines of a kernel log are kept: that they tell of nothing is no damage.
    if found is not None and found.damaged != TELLS_NOTHING:
        cut = "it is longer than what was kept" if part.cut else ""
        return replace(found, damaged=found.damaged or cut)
    kind = LOG if part.name.endswith(".log") else _KEPT.get(part.name, part.command)
    return Captured(kind=kind or part.name, facts=bare_facts(), checks=())


def _facts(content: bytes) -> Captured:
    try:
        facts = msgspec.json.decode(content, type=Facts)
        damaged = "" if facts.wire == WIRE else f"they are version {facts.wire}, not {WIRE}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _lost(f"its facts cannot be read: {error}")
    if damaged:
        return _lost(damaged)
    return Captured(kind=FACTS, facts=facts, checks=fact_checks())


def _lost(why: str) -> Captured:
    """Facts of which nothing is known: a node that is not judged is not fine."""
    return Captured(kind=FACTS, facts=bare_facts(), checks=("reach.answer",), damaged=why[:200])


def _swept(file: str, content: bytes, why: str | None) -> tuple[Entry, ...]:
    """Verdicts on pairs and nodes as `preflight blame` reaches them, without those on nobody.

    `why`: there are no measurements.
    """
    if not content and why:
        advice = "capture again; run/report.json, if it is there, says what the run found"
        verdict = unknown(f"no pair was measured: {why}", advice=advice)
        return (Entry(_SWEEP, file, (file,), verdict),)
    if not content:
        return ()
    stored = stored_in(Path(file), content)
    entries = judge_stored(stored, hosts_of(stored, None)).entries
    return tuple(
        replace(one, subject=f"{file} ({one.subject})", nodes=(file,))
        for one in entries
        if not names_nobody(one)
    )
