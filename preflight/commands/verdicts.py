"""Stored samples become the document and the lines of `preflight blame`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight import __version__
from preflight.commands.forms import judge_long, judge_short
from preflight.fleet.nodeset import fold, natural
from preflight.report.findings import findings
from preflight.report.missed import missed_rows, missed_words
from preflight.report.offline import Told
from preflight.report.ready import exit_code, readiness
from preflight.report.rows import blame_row
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.commands.judged import Judged
    from preflight.fabric.stored import Stored
    from preflight.fleet.model import Host
    from preflight.ledger import Entry
    from preflight.report.ready import Readiness

BLAMED, UNJUDGED, EMPTY = 1, 3, 5
"""The exit codes where somebody is blamed, where not all was judged, and where nothing was."""


def judge_stored(stored: Stored, hosts: Sequence[Host]) -> Judged:
    """Judge samples of either form; `hosts` is the fleet in order."""
    if stored.sweep is not None:
        return judge_long(stored.sweep, stored.observed, hosts)
    return judge_short(stored.observed, hosts)


def tell(stored: Stored, judged: Judged) -> Told:
    """Join what was judged as the report of a run does; but nobody is excluded for want of peers.

    A run may launch on nobody of whom nothing is known. Here nobody is launched on.
    """
    observed = stored.observed
    unheld = [one for one in judged.entries if names_nobody(one)]
    entries = [one for one in judged.entries if not names_nobody(one)]
    names = tuple(sorted(observed.nodes, key=natural))
    cut = stored.sweep.cut_off if stored.sweep else {}  # the ends of a path that is blamed
    known = sorted({*names, *cut, *cut.values()}, key=natural)
    ready = readiness(known, entries, strict=False)
    blamed = [one.component for one in judged.blames if one.kind in ("node", "endpoint")]
    return Told(
        preflight=__version__,
        samples=str(stored.path),
        form=stored.form,
        run=stored.run,
        exit=_exit(stored, entries, ready, unheld),
        backend=observed.backend,
        nodes=names,
        leaves=len(set(observed.leaves.values())),
        rails=len({one.rail for one in observed.tried}),
        rounds=len({one.round for one in observed.tried}),
        pairs=len(observed.tried),
        not_ready=ready.not_ready,
        exclude=fold(ready.not_ready),
        apart=ready.apart,
        findings=(
            *findings(entries, judged.blames, judged.systemic),
            *(replace(one, condemns=False) for one in findings(unheld)),
        ),
        blames=tuple(map(blame_row, judged.blames)),
        missed=missed_words(missed_rows(observed, blamed)),
        notes=(*judged.systemic.values(), *judged.notes),
    )


def names_nobody(entry: Entry) -> bool:
    """Whether a verdict only says that there was nothing to hold a measurement against."""
    verdict = entry.verdict
    return verdict.outcome is Outcome.UNKNOWN and not (verdict.blame or verdict.culprits)


def _exit(
    stored: Stored, entries: Sequence[Entry], ready: Readiness, unheld: Sequence[Entry]
) -> int:
    """As of a run, but 1 only where somebody is named; of nothing measured, nobody comes clear."""
    code = exit_code(entries, ready, strict=False, need=None)
    if code != BLAMED and unheld:
        code = UNJUDGED
    return code if code == BLAMED or stored.observed.digests else EMPTY
