"""Collects the items' verdicts; at the end writes the report, the summary and the exit code."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from _pytest.junitxml import LogXML, xml_key

from preflight import __version__
from preflight.core.command_line import EMPTY
from preflight.core.files import file_errors, refuse_typed
from preflight.core.registry import Entry, Ledger
from preflight.fabric.planner import coverage, pairs_tested, unread_words
from preflight.fabric.retest import unsettled_words
from preflight.fabric.samples import gc_paused
from preflight.fabric.schedule import count_by_round_kind, pairs_of
from preflight.fabric.sweep_plan import measured_share
from preflight.fleet.model import today
from preflight.report.document import CoverageRow, Report, row_of
from preflight.report.exports import class_of
from preflight.report.fabric_page import fabric_section
from preflight.report.findings import Finding, findings, suspicions
from preflight.report.header import overrides
from preflight.report.outputs import Outputs, past_runs, remove_old_runs, set_latest
from preflight.report.page import PAGE, page
from preflight.report.ready import (
    Ending,
    blame_row,
    exit_code,
    fleet_row,
    pair_rows,
    readiness,
    sensitivity_rows,
    verdict_fields,
)
from preflight.report.since import summary_of, utc_time
from preflight.report.terminal import NOTHING_APPLIES, next_command, summary, title
from preflight.session.flags import usage_errors
from preflight.session.items import (
    CheckItem,
    ItemVerdict,
    is_very_quiet,
    print_excluded,
    write_coloured,
)
from preflight.session.xdist import is_worker
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from preflight.history.run_record import Past
    from preflight.report.ready import Readiness
    from preflight.run.judgement import Key
    from preflight.run.run import Run
    from preflight.session.options import Choices


@dataclass(frozen=True)
class Conclusion:
    """A finished run: its report, and the lines of its summary."""

    report: Report
    findings: tuple[Finding, ...]
    outputs: Outputs
    hint: str

    def lines(self, width: int) -> list[str]:
        """Lay out the summary for a terminal of that width."""
        where, page_at = self.outputs.report_words, self.outputs.path_words(PAGE)
        return summary(
            self.report, self.findings, where=where, page=page_at, hint=self.hint, width=width
        )


@gc_paused()
def conclude(
    run: Run,
    entries: Sequence[Entry],
    outputs: Outputs,
    ending: Ending,
    *,
    began_s: float,
    past: Past | None = None,
) -> Conclusion:
    """Assemble the report, write it, and return what to show.

    `past` is what a history knows of this fleet, including this run.
    """
    names = [host.name for host in run.fleet.hosts]
    ready = readiness(names, entries, strict=ending.strict)
    measured, decoded = run.judgement.measured.sweep, run.judgement.sweep
    suspected = suspicions(entries, len(names))
    systemic = [f"{b.sentence}; {b.advice}" for b in decoded.blames if b.kind == "systemic"]
    remarks = filter(None, [unsettled_words(measured), *unread_words(measured)]) if measured else ()
    blames = tuple(map(blame_row, decoded.blames))
    sensitivity = sensitivity_rows(decoded.observed, blames, run.judgement.sweep_limits)
    report = Report(
        preflight=__version__,
        run=run.nonce,
        started=utc_time(began_s),
        seconds=round(run.seconds, 3),
        tier=run.settings.tier,
        exit=exit_code(entries, ready, ending),
        interrupted=ending.interrupted,
        fleet=fleet_row(names, run.fleet.origin, ready, run.fleet.leaves),
        **verdict_fields(entries),
        pairs=pair_rows(measured, decoded.judgements, pairs_of(run.rounds)) if measured else (),
        blames=blames,
        suspicions=(*suspected.values(), *systemic, *remarks),
        coverage=_coverage(run, names, past),
        sensitivity=sensitivity,
        overrides=overrides(run.fleet, today(), entries),
        measured_in=run.fleet.measured_in[0],
    )
    all_findings = findings(entries, blames, suspected)
    if entries:
        report = outputs.write_report(report)
        outputs.write(PAGE, _page(run, report, all_findings, outputs).encode())
        outputs.events.end(entries, summary_of(report, all_findings))
        if not run.replayed:  # what a run measured does not lie in the folder of its replay
            with suppress(OSError):
                set_latest(outputs.path)
        remove_old_runs(outputs.path, outputs.keep)
        outputs.write_metrics(report, all_findings)
    return Conclusion(report, all_findings, outputs, _hint(run, report, ready, ending))


def _hint(run: Run, report: Report, ready: Readiness, ending: Ending) -> str:
    """What to type next."""
    if report.verdicts and report.exit == EMPTY:
        return NOTHING_APPLIES
    broken = report.missing or report.counts.get(Outcome.BROKEN)
    ended = ending.interrupted or ending.broke or broken
    late = run.settings.fail_fast == "never" and not ended
    short_of_s = run.settings.wall_s if late else None
    return next_command(run.fleet, ready, by_pairs=bool(report.blames), short_of_s=short_of_s)


def _page(run: Run, report: Report, all_findings: tuple[Finding, ...], outputs: Outputs) -> str:
    """The run's HTML page."""
    sweep, observed = run.judgement.measured.sweep, run.judgement.sweep.observed
    drains = frozenset(entry.check.id for entry in run.registry if entry.check.drains)
    fabric = None
    if sweep is not None and observed is not None and sweep.pairs:
        limits = run.judgement.sweep_limits
        fabric = partial(fabric_section, observed, report.blames, sweep=sweep, limits=limits)
    return page(report, all_findings, fabric, earlier=past_runs(outputs.path), drains=drains)


def _coverage(run: Run, names: Sequence[str], past: Past | None) -> CoverageRow | None:
    """Count what was measured; None for a replayed run that did not record its rounds."""
    measured = run.judgement.measured
    if measured.sweep is None or measured.planned is None:
        return None
    now = coverage(measured.planned, pairs_tested(measured.sweep), names, past)
    turns = count_by_round_kind(measured.sweep, pairs_of(run.rounds))
    share = measured_share(measured.sweep)
    return row_of(
        CoverageRow,
        now,
        repairs=turns["repair"],
        retests=turns["retest"],
        measured_share=None if share is None else round(share, 3),
    )


_COLOUR_BY_OUTCOME = {"ok": "", "not run": "", "warn": "yellow", "waived": "yellow"}
"""Of outcomes in a list with -v; the others are red."""

_COLOUR_BY_EXIT = {0: "green", 1: "red"}


def _stopped(session: pytest.Session) -> bool:
    """Whether -x or --maxfail ended the session; other plugins stop one by other means."""
    at_most = session.config.getvalue("maxfail")
    return bool(at_most and session.testsfailed >= at_most)


def _last_line(report: pytest.TestReport) -> str:
    return (report.longreprtext.strip().splitlines() or ["its verdict never arrived"])[-1][:200]


class VerdictCollector:
    """The plugin object that collects verdicts and concludes; an xdist worker passes them on."""

    def __init__(self, run: Run, chosen: Choices) -> None:
        self._run = run
        self._chosen = chosen
        self._ledger = Ledger()
        self._keys_of: Mapping[str, Sequence[Key]] = {}
        self._broke = False
        self._interrupted = False
        self._other_tests_failed = False
        self.conclusion: Conclusion | None = None
        self._xml: LogXML | None = None
        self._junit: Path | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Find pytest's own writer of JUnit XML, if --junitxml was given.

        For root it writes into memory, as it would follow another user's link.
        """
        self._xml = session.config.stash.get(xml_key, None)
        if self._xml is None or os.geteuid() != 0:
            return
        self._junit = Path(self._xml.logfile)
        with usage_errors(), file_errors(f"--junitxml={self._junit}", "give another file"):
            refuse_typed(self._junit)
        self._xml.logfile = f"/proc/self/fd/{os.memfd_create('junit')}"

    def _write_junit(self) -> None:
        if self._xml is not None and self._junit is not None:
            content = Path(self._xml.logfile).read_bytes()
            self._xml.logfile = str(self._junit)
            self._chosen.outputs.write_asked(self._junit, content, make=True)

    def expect(self, keys: Sequence[Key], keys_of: Mapping[str, Sequence[Key]]) -> None:
        """Add the expected verdicts, and which item reaches which."""
        self._ledger.expect(keys)
        self._keys_of = keys_of

    def expect_repairs(self) -> None:
        """Add the pairs that were measured though they are in no scheduled round."""
        self._ledger.expect(self._run.repairs)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        """Attach the item's verdicts to pytest's report."""
        report = yield
        if call.when == "call" and isinstance(item, CheckItem):
            report.preflight_verdicts = item.verdicts
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self, report: Any) -> Generator[None, Any, Any]:
        """Turn the verdicts into plain types, which can be sent between processes."""
        data = yield
        if hasattr(report, "preflight_verdicts"):
            data["preflight_verdicts"] = msgspec.to_builtins(report.preflight_verdicts)
        return data

    @pytest.hookimpl(wrapper=True)
    def pytest_report_from_serializable(self) -> Generator[None, Any, Any]:
        """Decode the verdicts in the process that receives them."""
        report = yield
        if hasattr(report, "preflight_verdicts"):
            report.preflight_verdicts = msgspec.convert(
                report.preflight_verdicts, list[ItemVerdict]
            )
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the verdicts that arrive in the ledger."""
        if self._xml is not None and (keys := self._keys_of.get(report.nodeid)):
            # The default is the path of the checks, which differs between installations.
            self._xml.node_reporter(report).add_attribute("classname", class_of(keys[0][0]))
        arrived: Sequence[ItemVerdict] = getattr(report, "preflight_verdicts", ())
        for row in arrived:
            self._ledger.record(row.check, row.nodes, row.verdict)
        if report.failed and not hasattr(report, "preflight_verdicts"):
            # A worker that died, another plugin's set-up, or an ordinary test of the operator.
            self._ledger.mark_missing(self._keys_of.get(report.nodeid, ()), _last_line(report))
            self._other_tests_failed |= report.nodeid not in self._keys_of

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, Any] | None:
        """Name outcomes in pytest's counts as preflight does, without a progress letter."""
        if getattr(report, "when", "") != "call" or not hasattr(report, "preflight_verdicts"):
            return None
        outcome = dict(report.user_properties).get("preflight_outcome", "").replace("_", " ")
        word, colour = outcome.upper(), _COLOUR_BY_OUTCOME.get(outcome, "red")
        category = "warned" if outcome == "warn" else outcome
        return (category, "", (word, {colour: True}) if colour else word) if outcome else None

    def pytest_internalerror(self) -> None:
        """Record that preflight or another plugin broke."""
        self._broke = True

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Distinguish Ctrl-C from plugins that stop a session by a similar exception."""
        self._interrupted = type(excinfo.value) is KeyboardInterrupt or isinstance(
            excinfo.value, pytest.exit.Exception
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Settle the ledger, write the report, and set the exit code."""
        self._run.close()
        self._write_junit()
        if is_worker(session.config) or session.config.option.collectonly:
            return
        if exitstatus == pytest.ExitCode.USAGE_ERROR:
            return
        broke = exitstatus == pytest.ExitCode.INTERNAL_ERROR or (
            exitstatus == pytest.ExitCode.INTERRUPTED and not _stopped(session)
        )
        entries = self._final_entries(session)
        chosen, history = self._chosen, self._chosen.history
        if history and (trouble := history.remember(self._run, entries, chosen.began_s)):
            self._run.progress.line(f"history {trouble}")
        ending = Ending(
            strict=chosen.strict, need=chosen.need, interrupted=self._interrupted,
            broke=self._broke or broke, strangers_failed=self._other_tests_failed,
        )  # fmt: skip
        past = history.past if history else None
        self.conclusion = conclude(
            self._run, entries, chosen.outputs, ending, began_s=chosen.began_s, past=past
        )
        session.exitstatus = self.conclusion.report.exit

    def _final_entries(self, session: pytest.Session) -> tuple[Entry, ...]:
        """Add verdicts that no item has: repair pairs, failed gates, findings after a stop."""
        repairs = set(self._run.repairs)
        for key, verdict in self._run.judgement.verdicts().items():
            is_finding = verdict.makes_not_ready or verdict.outcome is Outcome.BROKEN
            if key in repairs or is_finding or (self._interrupted and key in self._ledger):
                self._ledger.record(*key, verdict)
        if self._interrupted:
            return self._ledger.settle("interrupted before it was judged")
        return self._ledger.settle("stopped by -x or --maxfail" if _stopped(session) else "")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the findings by cause, the ready and not-ready nodes, and the counts."""
        conclusion = self.conclusion
        if conclusion is None:
            return
        if is_very_quiet(terminalreporter.config):
            print_excluded(conclusion.report.fleet, conclusion.report.exit)
            return
        headline = title(conclusion.report, unsaved=conclusion.outputs.unsaved)
        colour = _COLOUR_BY_EXIT.get(conclusion.report.exit, "yellow")
        terminalreporter.section(headline, sep="=", bold=True, **{colour: True})
        width = min(terminalreporter._tw.fullwidth, 100)  # noqa: SLF001  pytest offers no other way
        for line in conclusion.lines(width):
            write_coloured(terminalreporter, line)
