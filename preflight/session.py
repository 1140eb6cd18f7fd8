"""A pytest session that judges a fleet: collects checks, measures once, reports by cause."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from preflight import __version__, handover
from preflight.console import TerminalProgress
from preflight.errors import UsageError
from preflight.fleet.sources import Wish, resolve
from preflight.items import GROUP_ABOVE, CheckFile, CheckItem
from preflight.ledger import Ledger
from preflight.outcome import Outputs, conclude
from preflight.registry import Registry, declares_check, load_file, load_folder, shipped_folder
from preflight.report.header import header
from preflight.report.terminal import finding_line
from preflight.report.text import wrapped
from preflight.run import Run, Settings
from preflight.stages.measured import Measured
from preflight.stages.progress import Silent
from preflight.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from preflight.run import FailFast, Key

_STATUS = {
    # outcome: (category in pytest's counts, letter, word with -v)
    "ok": ("ok", "", "OK"),
    "warn": ("warned", "", ("WARN", {"yellow": True})),
    "not_run": ("not run", "", "NOT RUN"),
    "fail": ("unfit", "", ("FAIL", {"red": True})),
    "flaky": ("flaky", "", ("FLAKY", {"red": True})),
    "unknown": ("unknown", "", ("UNKNOWN", {"red": True})),
    "broken": ("broken", "", ("BROKEN", {"red": True})),
    "lost": ("lost", "", ("LOST", {"red": True})),
}


def start(config: pytest.Config) -> Session:
    """Read options and inventory; pytest.UsageError (exit 4) when something is wrong with them."""
    try:
        _refuse_rivals(config)
        return Session(config)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def _refuse_rivals(config: pytest.Config) -> None:
    if config.getoption("reruns", None):
        raise UsageError("--reruns would hide flakiness: leave it out, preflight retests by itself")
    need = config.getoption("preflight_need")
    if need is not None and need < 1:
        raise UsageError(f"--preflight-need {need}: give the number of nodes the job needs")
    budget = config.getoption("preflight_budget")
    if budget is not None and not 1 <= budget <= 7 * 86400:
        raise UsageError(f"--preflight-budget {budget:g}: give seconds, 1 to 604800")


def _wish(config: pytest.Config) -> Wish:
    def said(name: str) -> str | None:
        value = config.getoption(f"preflight_{name}")
        return None if value is None else str(value)

    return Wish(
        nodes=said("nodes"),
        inventory=said("inventory"),
        exclude=said("exclude"),
        python=said("python"),
        env_file=said("env_file"),
        launch=said("launch"),
        interface=said("interface"),
        ini_nodes=config.getini("preflight_nodes") or None,
        ini_inventory=config.getini("preflight_inventory") or None,
        environ=dict(os.environ),
    )


def _replayed(path: str | None) -> Measured | None:
    if path is None:
        return None
    try:
        return Measured.decode(Path(path).expanduser().read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read the measurements {path}: {error}; give the measured.json of a run"
        ) from error


def _stopped(session: pytest.Session) -> bool:
    """Whether -x or --maxfail ended it; other plugins stop a session by other means."""
    at_most = session.config.getvalue("maxfail")
    return bool(at_most and session.testsfailed >= at_most)


def _heed_sigterm() -> None:
    """Let a scheduler's SIGTERM end a run as Ctrl-C does: with what is known, and nothing left."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def _last_line(report: pytest.TestReport) -> str:
    return (report.longreprtext.strip().splitlines() or ["its verdict never arrived"])[-1][:200]


class Session:
    """The plugin object of a run with --preflight, in the controller and in xdist's workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        self._began_s = time.time()
        self._ledger = Ledger()
        self._broke = False
        self._interrupted = False
        self._stop: KeyboardInterrupt | None = None
        self._strangers_failed = False
        self._keys_of: dict[str, Sequence[Key]] = {}
        self._shown: set[tuple[str, str]] = set()
        site = [Path(folder) for folder in config.getini("preflight_checks")]
        for folder in site:
            if not folder.is_dir():
                raise UsageError(f"preflight_checks: {folder} is no folder: correct the ini file")
        self._registry = Registry(
            [check for folder in (shipped_folder(), *site) for check in load_folder(folder)]
        )
        self._wanted = self._wanted_checks()
        settings = Settings(
            tier=config.getoption("preflight_tier") or "quick",
            fail_fast=config.getoption("preflight_fail_fast") or self._patience(),
            budget_s=config.getoption("preflight_budget"),
            even_if_busy=config.getoption("preflight_even_if_busy"),
        )
        self.run = Run(resolve(_wish(config)), self._registry, settings, Silent())
        self._grouped = self._are_grouped()
        self._replayed = _replayed(config.getoption("preflight_replay"))
        self.outputs = Outputs.beside(
            config.invocation_params.dir, config.getoption("preflight_report"), self._began_s
        )

    def _wanted_checks(self) -> set[str] | None:
        text = self._config.getoption("preflight_checks")
        if text is None:
            return None
        ids = [word.strip() for word in text.split(",") if word.strip()]
        if not ids:
            raise UsageError("--preflight-checks is empty: give ids, see: preflight checks")
        return {self._registry.find(check_id).check.id for check_id in ids}

    def _patience(self) -> FailFast:
        """Whoever is content with some ready nodes wants all judged before they are counted."""
        return "never" if self._config.getoption("preflight_need") is not None else "stage"

    def _are_grouped(self) -> bool:
        choice = self._config.getoption("preflight_items")
        return choice == "group" if choice else len(self.run.expected(self._wanted)) > GROUP_ABOVE

    # -- what is collected ------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(
        self, module_path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        """Make items of a check file; any other test file of the operator stays pytest's."""
        if not declares_check(module_path):
            return None
        file = CheckFile.from_parent(parent, path=module_path)
        file.registered = self._registered(module_path)
        file.run, file.grouped = self.run, self._grouped
        return file

    def _registered(self, path: Path) -> Any:
        for registered in self._registry:
            if registered.path.samefile(path):
                return registered
        try:
            self._registry = Registry([*self._registry, load_file(path)])
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
        self.run.registry = self._registry
        return self._registered(path)

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Keep the checks that were asked for."""
        if self._wanted is None:
            return
        keep = [
            item
            for item in items
            if not isinstance(item, CheckItem) or item.keys[0][0] in self._wanted
        ]
        dropped = [item for item in items if item not in set(keep)]
        if dropped:
            config.hook.pytest_deselected(items=dropped)
            items[:] = keep

    # -- when it is measured ----------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Show progress on pytest's terminal; in a worker of xdist, read what was measured."""
        self._session = session
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and not self._is_worker:
            terminal.showfspath = terminal.verbosity > 0
            terminal._show_progress_info = False  # noqa: SLF001  its per-cent sign has no option
            self.run.progress = TerminalProgress(terminal)
        _heed_sigterm()
        if self._is_worker:
            handover.take(cast("Any", session.config).workerinput, self.run)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self) -> None:
        """Under xdist, measure before the workers start, for the very items that they will select.

        xdist's controller collects nothing by itself, but only a collection knows what -k, -m and
        --lf leave: an item that no worker runs must neither be measured nor be missed.
        """
        try:
            self._session.perform_collect()
            failed = self._session.testsfailed
            if failed and not self._config.option.continue_on_collection_errors:
                raise self._session.Interrupted(f"{failed} errors during collection")
            self._measure(self._session.items)
        except KeyboardInterrupt as stop:
            self._stop = stop

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Stop here if not before: pytest finishes no session that was stopped while it started."""
        if self._stop is not None:
            raise self._stop

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell an xdist worker what was measured."""
        handover.give(node.workerinput, self.run, self.outputs)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Measure what the selected items need, after selection and before the first of them."""
        has_workers = session.config.pluginmanager.has_plugin("dsession")
        if self._is_worker or has_workers or session.config.option.collectonly:
            return
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            return
        self._measure(session.items)

    def _measure(self, items: Sequence[pytest.Item]) -> None:
        self._keys_of = {item.nodeid: item.keys for item in items if isinstance(item, CheckItem)}
        chosen = [key for keys in self._keys_of.values() for key in keys]
        order = {key: place for place, key in enumerate(self.run.expected())}
        keys = sorted(chosen, key=lambda key: order.get(key, len(order)))
        self._ledger.expect(keys)
        if self._replayed is not None:
            self.run.replay(self._replayed, keys, self._found)
        elif keys:
            try:
                self.run.measure(keys, self._found)
            finally:
                self._ledger.expect(self.run.repairs)
                self.outputs.write("measured.json", self.run.judgement.measured.encode())

    def _found(self, key: Key, verdict: Verdict) -> None:
        """Show a finding when it is known; one line for all verdicts that share its cause."""
        check, nodes = key
        subject = verdict.blame or "-".join(nodes)
        cause = (subject, verdict.cause or check)
        if cause not in self._shown:
            self._shown.add(cause)
            self.run.progress.line(finding_line(verdict.outcome, subject, check, verdict.sentence))

    # -- what the items said ----------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        """Attach the verdicts to the report, in plain types that travel between processes."""
        report = yield
        if call.when == "call" and isinstance(item, CheckItem):
            report.preflight_verdicts = getattr(item, "said", [])
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Enter the verdicts that arrive into the ledger."""
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

    # -- how it ends ------------------------------------------------------------------------

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
        self.run.close()
        if self._is_worker or session.config.option.collectonly:
            return
        if exitstatus == pytest.ExitCode.USAGE_ERROR:
            return
        broke = exitstatus == pytest.ExitCode.INTERNAL_ERROR or (
            exitstatus == pytest.ExitCode.INTERRUPTED and not _stopped(session)
        )
        self.conclusion = conclude(
            self.run,
            self._settled(session),
            self.outputs,
            began_s=self._began_s,
            version=__version__,
            strict=self._config.getoption("preflight_strict"),
            need=self._config.getoption("preflight_need"),
            interrupted=self._interrupted,
            broke=self._broke or broke,
            strangers_failed=self._strangers_failed,
        )
        session.exitstatus = self.conclusion.report.exit

    def _settled(self, session: pytest.Session) -> Any:
        """Add what is known without an item: repair pairs, shut gates, findings after a stop."""
        repairs = set(self.run.repairs)
        for key, verdict in self.run.judgement.known().items():
            is_finding = verdict.condemns or verdict.outcome is Outcome.BROKEN
            if key in repairs or is_finding or (self._interrupted and key in self._ledger):
                self._ledger.record(*key, verdict)
        if self._interrupted:
            return self._ledger.settle("interrupted before it was judged")
        return self._ledger.settle("stopped by -x or --maxfail" if _stopped(session) else "")

    # -- what is shown ----------------------------------------------------------------------

    def pytest_report_header(self) -> list[str]:
        """Say who is judged, how reached, what will run, how long, where the report goes."""
        keys = self.run.expected(self._wanted)
        nodes = len(self.run.fleet.hosts)
        per_node = sum(len(names) == 1 for _, names in keys) // nodes
        lines = header(
            self.run.fleet,
            version=__version__,
            tier=self.run.settings.tier,
            fail_fast=self.run.settings.fail_fast,
            budget_s=self.run.settings.wall_s,
            at_most=self.run.settings.at_most,
            per_node=per_node,
            rounds=len(self.run.rounds) if any(len(names) > 1 for _, names in keys) else 0,
            expected=len(keys),
            where=self.outputs.shown,
        )
        width = self._config.get_terminal_writer().fullwidth
        return [
            piece
            for line in lines
            for piece in wrapped(line, first="", indent=" " * 9, width=width)
        ]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the findings by cause, whom to launch on, and the counts."""
        conclusion = getattr(self, "conclusion", None)
        if conclusion is None:
            return
        from preflight.report.terminal import title

        terminalreporter.section(title(conclusion.report), sep="=")
        width = min(terminalreporter._tw.fullwidth, 100)  # noqa: SLF001  pytest offers no other way
        for line in conclusion.lines(width):
            terminalreporter.write_line(line)
