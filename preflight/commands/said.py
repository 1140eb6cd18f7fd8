"""What nodes said of themselves in a run or in a sweep's waves: a sentence may repeat any of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from preflight.errors import UsageError
from preflight.facts.model import Facts
from preflight.facts.node import Reach
from preflight.facts.ports import Ports
from preflight.fleet.files import read_regular
from preflight.fleet.nodeset import fold, natural
from preflight.report.since import nodes_in
from preflight.stages.measured import LARGEST
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from preflight.report.document import Report

_FILE = "measured.json"
_WAVE = re.compile(r"wave-\d{3,6}(-\d{1,3})?")


class Said(Struct, frozen=True):
    """Of one measured.json what names anybody; the samples, which are most of it, stay unread."""

    reach: dict[str, Reach] = {}
    facts: dict[str, Facts] = {}
    ports: dict[str, Ports] = {}
    port_troubles: dict[str, str] = {}


def said_in(folder: Path, report: Report) -> tuple[Said, ...]:
    """All that is known of the nodes that were judged; UsageError where something is missing.

    Without it a user or a serial number in a sentence could not be told from any other word.
    """
    told = tuple(filter(None, map(_read, (folder, *wave_folders(folder)))))
    known = {name for one in told for name in one.reach}
    if missing := [name for name in _judged(report) if name not in known]:
        raise UsageError(
            f"--public cannot hide what it does not know: what was said of {fold(missing)} is not "
            f"in {folder} (a killed run leaves no {_FILE}, and older sweeps lose their waves, see "
            "--preflight-keep); give a run that came to its end, or a single wave of a sweep: "
            f"preflight report {folder / 'wave-001'} --public"
        )
    return told


def wave_folders(folder: Path) -> Iterator[Path]:
    """The folders of a sweep's waves, also those of a try that was broken off; no link."""
    for path in sorted(folder.glob("wave-*")):
        if _WAVE.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            yield path


def latest_tries(waves: Iterable[Path]) -> list[Path]:
    """Of a wave that was done again, the last try: `wave-003-2` stands for `wave-003`."""
    tries = {tuple(path.name.split("-")[1:2]): path for path in sorted(waves, key=_number)}
    return list(tries.values())


def _number(path: Path) -> list[tuple[int, str]]:
    return natural(path.name)


def _read(folder: Path) -> Said | None:
    try:
        return msgspec.json.decode(read_regular(folder / _FILE, LARGEST), type=Said)
    except (OSError, ValueError, RecursionError):
        return None


def _judged(report: Report) -> Iterator[str]:
    """Nodes of which there is a verdict; that something was not run is our own sentence."""
    known = frozenset(report.fleet.nodes)
    rows = (row for row in report.verdicts if row.outcome is not Outcome.NOT_RUN)
    about = {row.subject for row in rows}
    judged = {name for subject in about for name in nodes_in(subject, known)}
    return (name for name in report.fleet.nodes if name in judged)
