"""Stored samples judged as a run judges its own: by the shipped checks of the fabric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight import __version__
from preflight.check import subject
from preflight.errors import UsageError
from preflight.fabric.judge import Decoded, judge_sweep
from preflight.fleet.model import Host
from preflight.fleet.nodeset import fold, natural
from preflight.ledger import Entry
from preflight.registry import load_folder, shipped_folder
from preflight.report.document import BlameRow
from preflight.report.findings import findings, suspicions
from preflight.report.offline import Told
from preflight.report.ready import exit_code, readiness

if TYPE_CHECKING:
    from collections.abc import Iterable

    from preflight.fabric.blame import Blame
    from preflight.fabric.stored import Stored

EMPTY = 5
"""The exit code where there was nothing to judge."""


def decode_stored(stored: Stored) -> Decoded:
    """Compare, decode and blame, as a run does; UsageError for what a run could not judge."""
    if stored.sweep is not None:
        return judge_sweep(stored.sweep, _hosts(stored))
    if stored.observed.tried:
        raise UsageError(
            f"{stored.path} holds the short form, which has no iterations to judge: give the long "
            "form, or the folder of its run"
        )
    return Decoded()


def judge_stored(stored: Stored, decoded: Decoded) -> Told:
    """Judge every pair by every check of the fabric that preflight ships."""
    observed, blames = stored.observed, decoded.blames
    entries = _entries(decoded)
    names = tuple(sorted(observed.nodes, key=natural))
    suspected = suspicions(entries, len(names))
    ready = readiness(names, entries, strict=False)
    return Told(
        preflight=__version__,
        samples=str(stored.path),
        form=stored.form,
        run=stored.run,
        exit=exit_code(entries, ready, strict=False, need=None) if observed.tried else EMPTY,
        backend=observed.backend,
        nodes=names,
        leaves=len(set(observed.leaves.values())),
        rails=len({one.rail for one in observed.tried}),
        rounds=len({one.round for one in observed.tried}),
        pairs=len(observed.tried),
        not_ready=ready.not_ready,
        exclude=fold(ready.not_ready),
        apart=ready.apart,
        findings=findings(entries, blames, suspected),
        blames=tuple(map(_row, blames)),
        notes=tuple(_notes(stored, blames, suspected.values())),
    )


def _hosts(stored: Stored) -> list[Host]:
    left_out = stored.sweep.left_out if stored.sweep else {}
    names = {*stored.observed.nodes, *left_out}
    return [Host(name=name, address=name) for name in sorted(names, key=natural)]


def _entries(decoded: Decoded) -> list[Entry]:
    checks = [
        registered
        for registered in load_folder(shipped_folder())
        if registered.check.stage == "fabric" and registered.subject == "pair"
    ]
    return [
        Entry(registered.check.id, subject(ends), ends, registered.conclude(pair))
        for registered in checks
        for ends, pair in decoded.pairs.items()
    ]


def _notes(stored: Stored, blames: Iterable[Blame], suspected: Iterable[str]) -> Iterable[str]:
    yield from suspected
    yield from (f"{one.sentence}; {one.advice}" for one in blames if one.kind == "systemic")
    if stored.sweep is None:
        return
    if stored.sweep.unfinished:
        yield f"the sweep ended early: {stored.sweep.unfinished}"
    yield from (f"{name} took no part: {why}" for name, why in stored.sweep.left_out.items())


def _row(one: Blame) -> BlameRow:
    return BlameRow(
        kind=one.kind,
        component=one.component,
        sentence=one.sentence,
        confidence=one.confidence,
        advice=one.advice,
        pairs=one.pairs,
    )
