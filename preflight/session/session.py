"""A pytest session that judges a fleet: collects its checks as items, and measures once."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from preflight import __version__
from preflight.check import subject
from preflight.core.command_line import Interrupts
from preflight.core.registry import Entry, Registered, declares_check, load_file, shipped_folder
from preflight.core.text import wrapped
from preflight.errors import UsageError
from preflight.report.events import Began, by_check
from preflight.report.findings import causes, findings
from preflight.report.header import header, plan_lines, reach_words, slurm_job
from preflight.report.ready import blame_row
from preflight.report.since import utc_time
from preflight.report.terminal import finding_line
from preflight.run.judgement import Key, stages_needed
from preflight.run.run import Run
from preflight.session import xdist
from preflight.session.flags import usage_errors
from preflight.session.items import (
    GROUP_ABOVE,
    CheckFile,
    CheckItem,
    TerminalProgress,
    is_very_quiet,
    send_to_stderr,
)
from preflight.session.options import Choices, read_options
from preflight.session.ranks import rank_0_plugin
from preflight.session.site import send_report
from preflight.session.verdict_collector import VerdictCollector

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from preflight.verdict import Verdict


CHOICE_S = 5.0
"""Time to choose the nodes' transports for the header; later nodes are chosen when connected."""


def start(config: pytest.Config) -> tuple[Session, VerdictCollector]:
    """Read options and inventory; UsageError when something is wrong with them."""
    chosen = read_options(config)
    run = Run(chosen.fleet, chosen.registry, chosen.settings, chosen.planned)
    rank_0 = rank_0_plugin(config)
    if rank_0 is not None:
        run.ways.use(rank_0.transport())
    collector = VerdictCollector(run, chosen)
    return Session(config, run, chosen, collector), collector


def _shipped_by_id(item: pytest.Item) -> str:
    """Sort key: shipped checks by id, whatever their file, before a site's."""
    if isinstance(item, CheckItem) and item.path.is_relative_to(shipped_folder()):
        return item.keys[0][0].replace(".", "_")
    return "~"


class Session:
    """The plugin object that collects and measures, in the controller and in xdist's workers."""

    def __init__(
        self, config: pytest.Config, run: Run, chosen: Choices, collector: VerdictCollector
    ) -> None:
        self.run = run
        self._config = config
        self._chosen = chosen
        self._collector = collector
        self._is_worker = xdist.is_worker(config)
        self._interrupts = Interrupts()
        self._pending_interrupt: KeyboardInterrupt | None = None
        self._unshown: list[Entry] = []
        self._shown_causes: set[tuple[str, str]] = set()
        self._grouped = chosen.items == "group" or (
            chosen.items is None and len(run.expected(chosen.selected)) > GROUP_ABOVE
        )

    # -- what is collected ------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(
        self, path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        """Load no __init__.py above the root folder, where any user may own it (/tmp)."""
        outside = not path.is_relative_to(self._config.rootpath)
        return pytest.Dir.from_parent(parent, path=path) if outside else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(
        self, module_path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        """Make items of a check file; any other test file is left to pytest."""
        if not declares_check(module_path):
            return None
        file = CheckFile.from_parent(parent, path=module_path)
        file.checks = self._checks_of(module_path)
        if len(file.checks) > 1:
            file.name = module_path.parent.name  # else `-k memory` also selects its other checks
        file.run, file.grouped = self.run, self._grouped
        return file

    def _checks_of(self, path: Path) -> list[Registered]:
        if matches := [entry for entry in self.run.registry if entry.path.samefile(path)]:
            return matches
        with usage_errors():
            self.run.registry.add(load_file(path))
        return self._checks_of(path)

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Sort the shipped checks by id, and keep those that were selected."""
        items.sort(key=_shipped_by_id)
        if self._chosen.selected is None:
            return
        keep: list[pytest.Item] = []
        dropped: list[pytest.Item] = []
        for item in items:
            is_other = isinstance(item, CheckItem) and item.keys[0][0] not in self._chosen.selected
            (dropped if is_other else keep).append(item)
        if dropped:
            config.hook.pytest_deselected(items=dropped)
            items[:] = keep

    @property
    def _shows_plan(self) -> bool:
        """Whether `--co` shows a screen with what would run; -v and -q list every verdict."""
        return bool(self._config.option.collectonly) and self._config.get_verbosity() == 0

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> list[str]:
        """For `--co`: what would run, and where this machine would log in."""
        if not self._shows_plan:
            return []
        keys = [key for item in items if isinstance(item, CheckItem) for key in item.keys]
        stage_of = {entry.check.id: entry.check.stage for entry in self.run.registry}
        lines = plan_lines(self.run.fleet, [(stage_of[check], check) for check, _ in keys])
        return self._wrapped(lines)

    def _wrapped(self, lines: Sequence[str]) -> list[str]:
        width = self._config.get_terminal_writer().fullwidth
        pieces = (wrapped(line, first="", indent=" " * 9, width=width) for line in lines)
        return list(chain.from_iterable(pieces))

    # -- when it is measured ----------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Show progress on pytest's terminal; in a worker of xdist, read the measurements."""
        self._session = session
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and not self._is_worker:
            terminal.showfspath = terminal.verbosity > 0
            terminal._show_progress_info = False  # noqa: SLF001  its per-cent sign has no option
            if self._shows_plan:
                terminal._printcollecteditems = lambda _: None  # noqa: SLF001  it has no option
            self.run.progress = TerminalProgress(terminal)
            if is_very_quiet(session.config):
                send_to_stderr(session.config, terminal)
        self._interrupts.install()
        if handoff := xdist.Handoff.received(session.config):
            handoff.apply_to(self.run)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Do not show the line of code where Ctrl-C came, except for --full-trace."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal and excinfo.type is KeyboardInterrupt and not self._config.option.fulltrace:
            terminal._report_keyboardinterrupt = lambda: None  # noqa: SLF001  it has no option

    def pytest_unconfigure(self) -> None:
        """Restore the signal handlers for a program that runs pytest inside itself."""
        self._interrupts.restore()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self) -> None:
        """Under xdist, measure before the workers start, for the items that they will select.

        xdist's controller collects nothing by itself, but only a collection knows what -k, -m and
        --lf select: an item that no worker runs must be neither measured nor reported missing.
        """
        try:
            self._session.perform_collect()
            failed = self._session.testsfailed
            if failed and not self._config.option.continue_on_collection_errors:
                raise self._session.Interrupted(f"{failed} errors during collection")
            self._measure(self._session.items)
        except KeyboardInterrupt as stop:
            self._pending_interrupt = stop

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Raise a pending Ctrl-C here: pytest does not finish a session that is stopped earlier."""
        if self._pending_interrupt is not None:
            raise self._pending_interrupt

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Hand the measurements to an xdist worker."""
        xdist.send(node.workerinput, self.run, self._chosen.outputs, self._chosen.site_nodes)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Measure what the selected items need, after selection and before the first of them."""
        has_workers = session.config.pluginmanager.has_plugin("dsession")
        if self._is_worker or has_workers or session.config.option.collectonly:
            return
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            return
        self._measure(session.items)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Pass the report on, last of all: a plugin that fails or hangs then costs nothing.

        A Ctrl-C that comes from here on changes only the exit code.
        """
        self._interrupts.protect_report()
        yield
        conclusion = self._collector.conclusion
        if conclusion is not None and conclusion.report.verdicts:
            for trouble in send_report(self._config, conclusion.report, conclusion.outputs.path):
                self.run.progress.line(f"sink   {trouble}")
        if self._interrupts.came_late:
            session.exitstatus = pytest.ExitCode.INTERRUPTED

    def _measure(self, items: Sequence[pytest.Item]) -> None:
        keys_of = {item.nodeid: item.keys for item in items if isinstance(item, CheckItem)}
        chosen = [key for keys in keys_of.values() for key in keys]
        order = {key: place for place, key in enumerate(self.run.expected())}
        keys = sorted(chosen, key=lambda key: order.get(key, len(order)))
        self._refuse_small_budget(keys)
        self._collector.expect(keys, keys_of)
        self.run.on_judged = self._show_findings
        if keys:
            self._begin_events(keys)
        if self._chosen.replayed is not None:
            self.run.replay(self._chosen.replayed, keys, self._collect_finding)
            self._collector.expect_repairs()
        elif keys:
            try:
                with usage_errors():  # some wrong settings show only in the nodes' facts
                    self.run.measure(keys, self._collect_finding)
            finally:
                self._collector.expect_repairs()
                self._write_measured()

    def _refuse_small_budget(self, keys: Sequence[Key]) -> None:
        """Refuse, before any node is contacted, a budget too small for the selected verdicts."""
        stages = frozenset(stages_needed(self.run.registry, {check for check, _ in keys}))
        work, wall_s = self._chosen.workload, self.run.settings.wall_s
        reason = replace(work.without_assumed_gpus, stages=stages).too_small(wall_s) if work else ""
        if reason:
            with usage_errors():
                raise UsageError(f"--preflight-budget={wall_s:g}: {reason}")

    def _begin_events(self, keys: Sequence[Key]) -> None:
        """Start the run's event file, which gets every verdict as soon as it is reached."""
        run, events = self.run, self._chosen.outputs.events
        names = [host.name for host in run.fleet.hosts]
        replayed = self._chosen.replayed
        events.begin(
            Began(
                preflight=__version__,
                run=replayed.nonce if replayed else run.nonce,
                started=utc_time(self._chosen.began_s),
                tier=run.settings.tier,
                nodes=tuple(names),
                origin=run.fleet.origin,
                leaves=run.fleet.leaves,
                expected=by_check(keys, names),
            )
        )
        run.on_verdict = events.verdict

    def _write_measured(self) -> None:
        """Write what a replay needs; measuring took minutes of a fleet, so Ctrl-C waits for it."""
        measured, outputs = self.run.judgement.measured, self._chosen.outputs
        try:
            outputs.write("measured.json", measured.encode())
        except KeyboardInterrupt:
            outputs.write("measured.json", measured.encode())
            raise

    def _collect_finding(self, key: Key, verdict: Verdict) -> None:
        """Keep a finding until its stage is judged: it is shown with like ones on other nodes."""
        check, nodes = key
        self._unshown.append(Entry(check, subject(nodes), nodes, verdict))

    def _show_findings(self) -> None:
        """Show the findings of a stage, the worst first; what an earlier one caused is not new."""
        new = [entry for entry in self._unshown if not self._shown_causes.issuperset(causes(entry))]
        self._unshown.clear()
        self._shown_causes.update(cause for entry in new for cause in causes(entry))
        sweep = self.run.judgement.measured.sweep
        blames = map(blame_row, self.run.judgement.sweep.blames) if new and sweep else ()
        names = frozenset(host.name for host in self.run.fleet.hosts)
        if not self._config.pluginmanager.has_plugin("terminalreporter"):
            return
        width = self._config.get_terminal_writer().fullwidth
        for finding in findings(new, tuple(blames)):
            self.run.progress.line(finding_line(finding, names, width))

    def pytest_report_header(self) -> list[str]:
        """The nodes, how they are reached, what will run, how long, and where the report goes."""
        run, keys = self.run, self.run.expected(self._chosen.selected)
        only_lists = self._config.option.collectonly
        contacts_none = only_lists or self._chosen.replayed is not None
        ways = {} if contacts_none else run.ways.choose_all(CHOICE_S)
        lines = header(
            run.fleet,
            reach_words(run.fleet.hosts, ways, slurm_job(run.fleet)),
            keys,
            run.planned,
            tier=run.settings.tier,
            limits=f"budget {run.settings.wall_s:g} s, fail-fast {run.settings.fail_fast}",
            at_most=run.settings.at_most,
            loads=any(run.registry[check].check.stage == "local" for check, _ in keys),
            estimate=self._chosen.estimate,
            where="none: nothing is measured" if only_lists else self._chosen.outputs.folder_words,
            replay=self._chosen.replay,
        )
        lines += xdist.warnings(self._config)
        history = self._chosen.history
        if history is not None and history.trouble:
            lines.append(f"history  {history.trouble}")
        return self._wrapped(lines)
