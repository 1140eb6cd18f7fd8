"""How a run ended: ready or not, the report on disk, and what the terminal says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from preflight.fabric.besides import counted, pairs_of
from preflight.fabric.coverage import coverage, pairs_tested, unread_words
from preflight.fabric.observed import observe
from preflight.fabric.shapes import shapes
from preflight.fabric.share import measured_share
from preflight.fabric.uncollected import uncollected
from preflight.fabric.unsettled import unsettled_words
from preflight.fleet.waivers import today
from preflight.report.document import CoverageRow, Report, encode
from preflight.report.exclude import excluded
from preflight.report.fabric_page import fabric_section
from preflight.report.findings import Finding, counts, findings, suspicions
from preflight.report.html.page import PAGE, Told, page
from preflight.report.missed import missed_rows
from preflight.report.next_step import next_command
from preflight.report.night import at, night_of
from preflight.report.overrides import overrides
from preflight.report.picture.accused import accused
from preflight.report.ready import Readiness, exit_code, readiness
from preflight.report.rows import blame_row, fleet_row, pair_rows, verdict_row
from preflight.report.runs import earlier
from preflight.report.shapes import shape_rows
from preflight.report.terminal import summary
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fabric.shapes import Shape
    from preflight.history.past import Past
    from preflight.ledger import Entry
    from preflight.report.outputs import Outputs
    from preflight.run import Run


@dataclass(frozen=True)
class Conclusion:
    """A finished run, as data and as lines."""

    report: Report
    found: tuple[Finding, ...]
    outputs: Outputs
    hint: str
    unheard: str = ""
    """Why Prometheus was not told, if so."""
    unsaved: bool = False
    """All is well, but not all files could be written where they belong."""

    def lines(self, width: int) -> list[str]:
        """Lay out the summary for a terminal of that width."""
        there = self.report.verdicts and "report.json" in self.outputs.written
        written = f"{self.outputs.shown}/report.json" if there else ""
        where = "; ".join(filter(None, (written, self.outputs.told, self.unheard)))
        page = f"{self.outputs.shown}/{PAGE}" if PAGE in self.outputs.written else ""
        return summary(self.report, self.found, where=where, page=page, hint=self.hint, width=width)


@uncollected()
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
    again = filter(None, [unsettled_words(measured), *unread_words(measured)]) if measured else ()
    blamed = [one.component for one in decoded.blames if one.kind in ("node", "endpoint")]
    observed = decoded.observed
    with run.judgement.by_its_numbers():
        shaped = shapes(measured, observed) if measured and observed else ()
        missed = missed_rows(observed, blamed)
    report = Report(
        preflight=version,
        run=run.nonce,
        started=at(began_s),
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
        fleet=fleet_row(names, run.fleet.origin, ready, run.fleet.leaves),
        expected=len(entries),
        lost=by_outcome[Outcome.LOST],
        counts={str(outcome): number for outcome, number in by_outcome.items()},
        verdicts=tuple(verdict_row(entry) for entry in entries),
        pairs=pair_rows(measured, decoded.seen, pairs_of(run.rounds)) if measured else (),
        blames=tuple(blame_row(one) for one in decoded.blames),
        suspicions=(*suspected.values(), *systemic, *again),
        coverage=_coverage(run, names, past),
        missed=missed,
        shapes=shape_rows(shaped),
        overrides=overrides(run.fleet, today(), entries),
        measured_in=run.fleet.measured_in[0],
    )
    well, unheard = report.exit == 0, ""
    found = findings(entries, decoded.blames, suspected)
    if entries:
        report = _written(report, ready, outputs)
        with run.judgement.by_its_numbers():
            outputs.write(PAGE, _page(run, report, found, outputs, shaped).encode())
        outputs.events.end(entries, night_of(report, found))
        outputs.put_away()
        unheard = outputs.tell_prometheus(report, found)
    ended = interrupted or broke or by_outcome[Outcome.LOST] or by_outcome[Outcome.BROKEN]
    late = run.settings.fail_fast == "never" and not ended
    short_of_s = run.settings.wall_s if late else None
    hint = next_command(run.fleet, ready, by_pairs=bool(decoded.blames), short_of_s=short_of_s)
    return Conclusion(report, found, outputs, hint, unheard, unsaved=well and report.exit != 0)


def _page(
    run: Run,
    report: Report,
    found: tuple[Finding, ...],
    outputs: Outputs,
    shaped: Sequence[Shape],
) -> str:
    """Draw the run for eyes; a page that could not be written changes no exit code."""
    sweep, decoded = run.judgement.measured.sweep, run.judgement.sweep
    told = Told(
        found=found,
        earlier=earlier(outputs.path),
        drains=frozenset(one.check.id for one in run.registry if one.check.drains),
    )
    if sweep is None or not sweep.pairs:
        return page(report, told)
    observed = decoded.observed if decoded.observed is not None else observe(sweep)
    blamed = accused(decoded.blames, observed)
    return page(
        report,
        told,
        lambda most: fabric_section(
            observed, blamed, sweep=sweep, shaped=shaped, told=True, most=most
        ),
    )


def _written(report: Report, ready: Readiness, outputs: Outputs) -> Report:
    """Write the files. A report that could not be written is not a pass."""
    hosts = "".join(f"{name}\n" for name in ready.launchable)
    outputs.write("ready.hosts", hosts.encode())
    outputs.write("report.json", encode(report))
    outputs.write_excluded(excluded(report.fleet))
    if outputs.trouble and report.exit == 0:
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
