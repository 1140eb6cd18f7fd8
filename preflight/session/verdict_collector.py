"""What the items said, entered as it arrives; at the end the report, the screen, the exit code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from _pytest.junitxml import xml_key  # what its fixture record_xml_attribute uses

from preflight import __version__
from preflight.items import CheckItem
from preflight.ledger import Entry, Ledger
from preflight.outcome import Conclusion, conclude
from preflight.report.files import refuse_typed
from preflight.report.junit import class_of
from preflight.report.terminal import title
from preflight.terse import is_terse
from preflight.terse import tell as terse_words
from preflight.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from _pytest.junitxml import LogXML

    from preflight.judgement import Key
    from preflight.options import Chosen
    from preflight.run import Run

_STATUS = {
    # outcome: (category in pytest's counts, letter, word with -v)
    "ok": ("ok", "", "OK"),
    "warn": ("warned", "", ("WARN", {"yellow": True})),
    "not_run": ("not run", "", "NOT RUN"),
    "waived": ("waived", "", ("WAIVED", {"yellow": True})),
    "fail": ("unfit", "", ("FAIL", {"red": True})),
    "flaky": ("flaky", "", ("FLAKY", {"red": True})),
    "unknown": ("unknown", "", ("UNKNOWN", {"red": True})),
    "broken": ("broken", "", ("BROKEN", {"red": True})),
    "lost": ("lost", "", ("LOST", {"red": True})),
}


def _stopped(session: pytest.Session) -> bool:
    """Whether -x or --maxfail ended it; other plugins stop a session by other means."""
    at_most = session.config.getvalue("maxfail")
    return bool(at_most and session.testsfailed >= at_most)


def _last_line(report: pytest.TestReport) -> str:
    return (report.longreprtext.strip().splitlines() or ["its verdict never arrived"])[-1][:200]


class Tally:
    """The plugin object that counts and concludes; in a worker of xdist it passes verdicts on."""

    def __init__(self, run: Run, chosen: Chosen, *, is_worker: bool) -> None:
        self._run = run
        self._chosen = chosen
        self._is_worker = is_worker
        self._ledger = Ledger()
        self._keys_of: Mapping[str, Sequence[Key]] = {}
        self._broke = False
        self._interrupted = False
        self._strangers_failed = False
        self.conclusion: Conclusion | None = None
        self._xml: LogXML | None = None
        self._junit: Path | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Find pytest's own writer of JUnit XML, where it was asked for.

        Root has it write into memory: it would follow a stranger's link.
        """
        self._xml = session.config.stash.get(xml_key, None)
        if self._xml is None or os.geteuid() != 0:
            return
        self._junit = Path(self._xml.logfile)
        try:
            refuse_typed(self._junit)
        except OSError as error:
            words = f"--junitxml={self._junit}: {error.strerror}; give another file"
            raise pytest.UsageError(words) from error
        self._xml.logfile = f"/proc/self/fd/{os.memfd_create('junit')}"

    def _write_junit(self) -> None:
        if self._xml is not None and self._junit is not None:
            content = Path(self._xml.logfile).read_bytes()
            self._xml.logfile = str(self._junit)
            self._chosen.outputs.write_asked(self._junit, content, make=True)

    def expect(self, keys: Sequence[Key], keys_of: Mapping[str, Sequence[Key]]) -> None:
        """Note what is owed, and which item owes what."""
        self._ledger.expect(keys)
        self._keys_of = keys_of

    def expect_repairs(self) -> None:
        """Add the pairs that were measured though no scheduled round holds them."""
        self._ledger.expect(self._run.repairs)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        """Attach the verdicts to the report, in plain types that travel between processes."""
        report = yield
        if call.when == "call" and isinstance(item, CheckItem):
            report.preflight_verdicts = getattr(item, "said", [])
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Enter the verdicts that arrive into the ledger."""
        if self._xml is not None and (keys := self._keys_of.get(report.nodeid)):
            # By default it is the path of the checks, which differs between installations.
            self._xml.node_reporter(report).add_attribute("classname", class_of(keys[0][0]))
        for said in getattr(report, "preflight_verdicts", ()):
            verdict = msgspec.convert(said["verdict"], Verdict)
            self._ledger.record(said["check"], tuple(said["nodes"]), verdict)
        if report.failed and not hasattr(report, "preflight_verdicts"):
            # A worker that died, another plugin's set-up, or an ordinary test of the operator.
            self._ledger.lose(self._keys_of.get(report.nodeid, ()), _last_line(report))
            self._strangers_failed |= report.nodeid not in self._keys_of

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, Any] | None:
        """Count outcomes in our words; letters are left to the progress line."""
        if getattr(report, "when", "") == "call" and hasattr(report, "preflight_verdicts"):
            outcome = dict(report.user_properties).get("preflight_outcome")
            return _STATUS.get(str(outcome))
        return None

    def pytest_internalerror(self) -> None:
        """Remember that preflight itself, or another plugin, broke."""
        self._broke = True

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Tell a person's Ctrl-C from plugins that stop a session by an exception of that kind."""
        self._interrupted = type(excinfo.value) is KeyboardInterrupt or isinstance(
            excinfo.value, pytest.exit.Exception
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Settle the ledger, write the report, and give the exit code that says what it means."""
        self._run.close()
        self._write_junit()
        if self._is_worker or session.config.option.collectonly:
            return
        if exitstatus == pytest.ExitCode.USAGE_ERROR:
            return
        broke = exitstatus == pytest.ExitCode.INTERNAL_ERROR or (
            exitstatus == pytest.ExitCode.INTERRUPTED and not _stopped(session)
        )
        entries = self._settled(session)
        history = self._chosen.history
        if history and (trouble := history.remember(self._run, entries, self._chosen.began_s)):
            self._run.progress.line(f"history {trouble}")
        self.conclusion = conclude(
            self._run,
            entries,
            self._chosen.outputs,
            began_s=self._chosen.began_s,
            version=__version__,
            strict=self._chosen.strict,
            need=self._chosen.need,
            past=history.past if history else None,
            interrupted=self._interrupted,
            broke=self._broke or broke,
            strangers_failed=self._strangers_failed,
        )
        session.exitstatus = self.conclusion.report.exit

    def _settled(self, session: pytest.Session) -> tuple[Entry, ...]:
        """Add what is known without an item: repair pairs, shut gates, findings after a stop."""
        repairs = set(self._run.repairs)
        for key, verdict in self._run.judgement.known().items():
            is_finding = verdict.condemns or verdict.outcome is Outcome.BROKEN
            if key in repairs or is_finding or (self._interrupted and key in self._ledger):
                self._ledger.record(*key, verdict)
        if self._interrupted:
            return self._ledger.settle("interrupted before it was judged")
        return self._ledger.settle("stopped by -x or --maxfail" if _stopped(session) else "")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the findings by cause, whom to launch on, and the counts."""
        conclusion = self.conclusion
        if conclusion is None:
            return
        if is_terse(terminalreporter.config):
            terse_words(conclusion.report.fleet, conclusion.report.exit)
            return
        terminalreporter.section(title(conclusion.report, unsaved=conclusion.unsaved), sep="=")
        width = min(terminalreporter._tw.fullwidth, 100)  # noqa: SLF001  pytest offers no other way
        for line in conclusion.lines(width):
            terminalreporter.write_line(line)
