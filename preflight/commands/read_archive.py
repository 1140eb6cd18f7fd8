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
from preflight.offline.archive import unpack
from preflight.offline.captured import Captured, bare_facts
from preflight.offline.kernel_log import TELLS_NOTHING
from preflight.offline.readers import captured

if TYPE_CHECKING:
    from preflight.ledger import Entry
    from preflight.offline.archive import Part

FACTS, LOG = "facts of a node", "NCCL log"
MEASURED = "run/measured.json"
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
    return parts, _swept(whose + MEASURED, archive.files.get(MEASURED, b""))


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
        facts, damaged = bare_facts(), f"its facts cannot be read: {error}"[:200]
    checks = ("reach.answer",) if damaged else fact_checks()
    return Captured(kind=FACTS, facts=facts, checks=checks, damaged=damaged)


def _swept(file: str, content: bytes) -> tuple[Entry, ...]:
    """Verdicts on pairs and nodes as `preflight blame` reaches them, without those on nobody."""
    if not content:
        return ()
    stored = stored_in(Path(file), content)
    entries = judge_stored(stored, hosts_of(stored, None)).entries
    return tuple(
        replace(one, subject=f"{file} ({one.subject})", nodes=(file,))
        for one in entries
        if not names_nobody(one)
    )
