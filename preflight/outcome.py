"""How a run ended: ready or not, the report on disk, and what the terminal says of it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.fabric.besides import counted, pairs_of, turn_of
from preflight.fabric.coverage import coverage, pairs_tested
from preflight.fabric.shapes import shapes
from preflight.fabric.share import measured_share
from preflight.fabric.unsettled import unsettled_words
from preflight.fleet.nodeset import fold
from preflight.report.document import (
    BlameRow,
    CoverageRow,
    FleetRow,
    PairRow,
    Report,
    SizeRow,
    VerdictRow,
    encode,
)
from preflight.report.fabric_page import PICTURE, picture_of
from preflight.report.files import open_folder, remove, write_atomically
from preflight.report.findings import Finding, counts, findings, suspicions
from preflight.report.kept import Kept, full
from preflight.report.missed import missed_rows
from preflight.report.next_step import next_command
from preflight.report.ready import Readiness, exit_code, readiness
from preflight.report.shapes import shape_rows
from preflight.report.terminal import summary
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.besides import Turn
    from preflight.fabric.blame import Blame
    from preflight.fabric.compare import Seen
    from preflight.fabric.samples import PairSamples, Sweep
    from preflight.history.past import Past
    from preflight.ledger import Entry
    from preflight.run import Run


@dataclass
class Outputs:
    """The run's folder; made when the first file needs it, so that `--co` leaves nothing."""

    path: Path
    trouble: str = field(default="", init=False)
    written: set[str] = field(default_factory=set, init=False)
    kept: Kept = field(default_factory=Kept, init=False)

    @classmethod
    def beside(cls, working: Path, chosen: str | None, began_s: float) -> Outputs:
        """Use the operator's folder, else a new one per run under the working folder."""
        if chosen:
            return cls(working / Path(chosen).expanduser())
        stamp = datetime.fromtimestamp(began_s, UTC).strftime("%Y%m%d-%H%M%S")
        folder = working / "preflight-runs"
        names = (stamp, *(f"{stamp}-{number}" for number in range(2, 100)))
        return cls(
            next((folder / name for name in names if not (folder / name).exists()), folder / stamp)
        )

    def refuse_unusable(self) -> None:
        """Say before anything is measured that nothing could be written; UsageError (exit 4)."""
        there = next(path for path in (self.path, *self.path.parents) if path.exists())
        if not there.is_dir():
            raise UsageError(f"--preflight-report: {there} is no folder: give another one")
        if not os.access(there, os.W_OK | os.X_OK):
            raise UsageError(f"cannot write into {there}: give a folder with --preflight-report")
        if full(there):
            raise UsageError(
                f"the disk of {there} is full: make room, or give --preflight-report DIR"
            )
        try:
            with open_folder(self.path, make=False):
                return
        except FileNotFoundError:
            return  # what is there of the way to it is fine
        except OSError as error:
            raise UsageError(
                f"--preflight-report: {error.strerror}: give a folder of your own"
            ) from error

    @property
    def shown(self) -> str:
        """The folder as a person would type it."""
        try:
            return str(self.path.relative_to(Path.cwd()))
        except ValueError:
            return str(self.path)

    def write(self, name: str, content: bytes) -> None:
        """Write one file in one piece. A full disk costs its place there, never the verdicts.

        What an earlier run left there under that name is removed: it would be taken for this one's.
        """
        try:
            write_atomically(self.path / name, content)
            self.written.add(name)
        except OSError as error:
            with suppress(OSError):
                remove(self.path / name)
            self.kept.keep(name, content)
            self.trouble = self.trouble or f"cannot write {self.path / name}: {error.strerror}"

    @property
    def told(self) -> str:
        """What could not be written, where it is instead, what to do; nothing if all is well."""
        if not self.trouble:
            return ""
        return (
            f"{self.trouble}; {self.kept.words}; make room there, or give another folder: "
            "--preflight-report DIR"
        )


@dataclass(frozen=True)
class Conclusion:
    """A finished run, as data and as lines."""

    report: Report
    found: tuple[Finding, ...]
    outputs: Outputs
    hint: str
    unsaved: bool = False
    """All is well, but not all files could be written where they belong."""

    def lines(self, width: int) -> list[str]:
        """Lay out the summary for a terminal of that width."""
        there = self.report.verdicts and "report.json" in self.outputs.written
        written = f"{self.outputs.shown}/report.json" if there else ""
        where = "; ".join(filter(None, (written, self.outputs.told)))
        picture = f"{self.outputs.shown}/{PICTURE}" if PICTURE in self.outputs.written else ""
        return summary(
            self.report, self.found, where=where, picture=picture, hint=self.hint, width=width
        )


def conclude(
    run: Run,
    entries: Sequence[Entry],
    outputs: Outputs,
    *,
    began_s: float,
    version: str,
    strict: bool,
    need: int | None,
    past: Past | None,
    interrupted: bool,
    broke: bool,
    strangers_failed: bool,
) -> Conclusion:
    """Join everything that is known into the report, write it, and keep what to show.

    `past` is what a history knows of this fleet, this run included.
    """
    names = [host.name for host in run.fleet.hosts]
    ready = readiness(names, entries, strict=strict)
    measured, decoded = run.judgement.measured.sweep, run.judgement.sweep
    by_outcome = counts(entries)
    suspected = suspicions(entries, len(names))
    systemic = [f"{b.sentence}; {b.advice}" for b in decoded.blames if b.kind == "systemic"]
    again = filter(None, [unsettled_words(measured)]) if measured else ()
    blamed = [one.component for one in decoded.blames if one.kind in ("node", "endpoint")]
    observed = decoded.observed
    shaped = shapes(measured, observed) if measured and observed else ()
    report = Report(
        preflight=version,
        run=run.nonce,
        started=datetime.fromtimestamp(began_s, UTC).isoformat(timespec="seconds"),
        seconds=round(run.seconds, 3),
        tier=run.settings.tier,
        exit=exit_code(
            entries,
            ready,
            strict=strict,
            need=need,
            interrupted=interrupted,
            broke=broke,
            strangers_failed=strangers_failed,
        ),
        interrupted=interrupted,
        fleet=_fleet(run, names, ready),
        expected=len(entries),
        lost=by_outcome[Outcome.LOST],
        counts={str(outcome): number for outcome, number in by_outcome.items()},
        verdicts=tuple(_verdict(entry) for entry in entries),
        pairs=_pairs(run, measured, decoded.seen) if measured else (),
        blames=tuple(_blame(one) for one in decoded.blames),
        suspicions=(*suspected.values(), *systemic, *again),
        coverage=_coverage(run, names, past),
        missed=missed_rows(observed, blamed),
        shapes=shape_rows(shaped),
    )
    well = report.exit == 0
    if entries:
        report = _written(report, ready, outputs)
        if measured is not None and measured.pairs:
            page = picture_of(
                measured, decoded.blames, observed, shaped=shaped, missed=report.missed
            )
            outputs.write(PICTURE, page.encode())
    hint = next_command(run.fleet, ready, by_pairs=bool(decoded.blames))
    found = findings(entries, decoded.blames, suspected)
    return Conclusion(report, found, outputs, hint, unsaved=well and report.exit != 0)


def _written(report: Report, ready: Readiness, outputs: Outputs) -> Report:
    """Write the files. A report that could not be written is not a pass."""
    hosts = "".join(f"{name}\n" for name in ready.launchable)
    outputs.write("ready.hosts", hosts.encode())
    outputs.write("report.json", encode(report))
    if outputs.trouble and report.exit == 0:
        import msgspec

        return msgspec.structs.replace(report, exit=3)
    return report


def _coverage(run: Run, names: Sequence[str], past: Past | None) -> CoverageRow | None:
    """Count what was measured; a replayed run that did not keep its rounds tells nothing."""
    measured = run.judgement.measured
    if measured.sweep is None or measured.planned is None:
        return None
    now = coverage(measured.planned, pairs_tested(measured.sweep), names, past)
    turns = counted(measured.sweep, pairs_of(run.rounds))
    share = measured_share(measured.sweep)
    return CoverageRow(
        **{name: getattr(now, name) for name in now.__struct_fields__},
        repairs=turns["repair"],
        retests=turns["retest"],
        measured_share=None if share is None else round(share, 3),
    )


def _fleet(run: Run, names: Sequence[str], ready: Readiness) -> FleetRow:
    return FleetRow(
        nodes=tuple(names),
        folded=fold(names),
        origin=run.fleet.origin,
        ready=ready.ready,
        not_ready=ready.not_ready,
        unjudged=ready.unjudged,
        apart=ready.apart,
        exclude=fold(ready.not_ready),
    )


def _verdict(entry: Entry) -> VerdictRow:
    verdict = entry.verdict
    return VerdictRow(
        check=entry.check,
        subject=entry.subject,
        outcome=verdict.outcome,
        sentence=verdict.sentence,
        advice=verdict.advice,
        evidence=verdict.evidence,
        blame=verdict.blame,
        culprits=verdict.culprits,
        suspects=verdict.suspects,
    )


def _pairs(run: Run, sweep: Sweep, seen: Sequence[Seen]) -> tuple[PairRow, ...]:
    scheduled = pairs_of(run.rounds)
    rows = zip(sweep.pairs, seen, strict=True)
    return tuple(_pair(pair, one, turn_of(pair, sweep, scheduled)) for pair, one in rows)


def _pair(pair: PairSamples, seen: Seen, turn: Turn) -> PairRow:
    measured = seen.summary
    return PairRow(
        a=pair.a,
        b=pair.b,
        rail=pair.rail,
        round=pair.round,
        backend=pair.backend,
        state=measured.state,
        sizes=tuple(
            SizeRow(
                size_bytes=size.size_bytes,
                iterations=size.iterations,
                busbw_gbs=size.busbw_gbs,
                p50_us=size.p50_us,
                p99_us=size.p99_us,
                max_us=size.max_us,
            )
            for size in measured.sizes
        ),
        turn=turn,
        slow=seen.slow or seen.once,
        peers_gbs=seen.bound.peers_gbs,
        limit_gbs=seen.bound.gbs,
        limit_origin=seen.bound.origin,
    )


def _blame(one: Blame) -> BlameRow:
    return BlameRow(
        kind=one.kind,
        component=one.component,
        sentence=one.sentence,
        confidence=one.confidence,
        advice=one.advice,
        pairs=tuple(one.pairs),
        rail=one.rail,
    )
