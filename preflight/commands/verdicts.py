"""Stored samples become the document and the lines of `preflight blame`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight import __version__
from preflight.commands.long_form import judge_long
from preflight.commands.short_form import judge_short
from preflight.fleet.nodeset import fold, natural
from preflight.report.document import BlameRow
from preflight.report.findings import findings
from preflight.report.offline import Told
from preflight.report.ready import exit_code, readiness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.commands.judged import Judged
    from preflight.fabric.blame import Blame
    from preflight.fabric.stored import Stored
    from preflight.fleet.model import Host
    from preflight.ledger import Entry
    from preflight.report.ready import Readiness

BLAMED, EMPTY = 1, 5
"""The exit codes where somebody is blamed, and where there was nothing to judge."""


def judge_stored(stored: Stored, hosts: Sequence[Host]) -> Judged:
    """Judge samples of either form; `hosts` is the fleet in order."""
    if stored.sweep is not None:
        return judge_long(stored.sweep, stored.observed, hosts)
    return judge_short(stored.observed)


def tell(stored: Stored, judged: Judged) -> Told:
    """Join what was judged as the report of a run does."""
    observed, entries = stored.observed, judged.entries
    names = tuple(sorted(observed.nodes, key=natural))
    cut_off = stored.sweep.cut_off if stored.sweep else {}  # an end of a path that is blamed
    ready = readiness(sorted({*names, *cut_off}, key=natural), entries, strict=False)
    return Told(
        preflight=__version__,
        samples=str(stored.path),
        form=stored.form,
        run=stored.run,
        exit=_exit(stored, entries, ready),
        backend=observed.backend,
        nodes=names,
        leaves=len(set(observed.leaves.values())),
        rails=len({one.rail for one in observed.tried}),
        rounds=len({one.round for one in observed.tried}),
        pairs=len(observed.tried),
        not_ready=ready.not_ready,
        exclude=fold(ready.not_ready),
        apart=ready.apart,
        findings=findings(entries, judged.blames, judged.systemic),
        blames=tuple(map(_row, judged.blames)),
        notes=(*judged.systemic.values(), *judged.notes),
    )


def _exit(stored: Stored, entries: Sequence[Entry], ready: Readiness) -> int:
    """As a run's; but where nothing was measured, that nobody is blamed clears nobody."""
    code = exit_code(entries, ready, strict=False, need=None)
    return code if code == BLAMED or stored.observed.digests else EMPTY


def _row(one: Blame) -> BlameRow:
    return BlameRow(
        kind=one.kind,
        component=one.component,
        sentence=one.sentence,
        confidence=one.confidence,
        advice=one.advice,
        pairs=one.pairs,
        rail=one.rail,
    )
