"""A pytest session that judges a fleet: collects its checks as items, and measures once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from preflight import __version__
from preflight.check import subject
from preflight.core.interrupt import Interrupts
from preflight.core.registry import declares_check, load_file, shipped_folder
from preflight.core.text import wrapped
from preflight.errors import UsageError
from preflight.fleet.nodeset import fold
from preflight.report.events import Began, owed
from preflight.report.header import header, reach_words, slurm_job
from preflight.report.since import at
from preflight.report.terminal import finding_line
from preflight.run.judgement import stages_needed
from preflight.run.measured import Silent
from preflight.run.run import Run
from preflight.session import xdist
from preflight.session.flags import usage_errors
from preflight.session.items import (
    GROUP_ABOVE,
    CheckFile,
    CheckItem,
    TerminalProgress,
    hush,
    is_terse,
)
from preflight.session.options import Chosen, read_options
from preflight.session.ranks import leading
from preflight.session.site import tell
from preflight.session.verdict_collector import Tally

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    from preflight.core.registry import Registered
    from preflight.run.judgement import Key
    from preflight.transport.ways import Way
    from preflight.verdict import Verdict


WAYS_S = 5.0
"""For the header to find out how nodes will be reached; who takes longer is asked again later."""


def start(config: pytest.Config) -> tuple[Session, Tally]:
    """Read options and inventory; UsageError when something is wrong with them."""
    chosen = read_options(config)
    is_worker = hasattr(config, "workerinput")
    run = Run(chosen.fleet, chosen.registry, chosen.settings, Silent(), chosen.planned)
    rank_0 = leading(config)
    if rank_0 is not None:
        run.ways.use(rank_0.transport())
    tally = Tally(run, chosen, is_worker=is_worker)
    return Session(config, run, chosen, tally, is_worker=is_worker), tally


def _shipped_by_id(item: pytest.Item) -> str:
    """Shipped checks by id, before a site's, whatever the files they stand in."""
    if isinstance(item, CheckItem) and item.path.is_relative_to(shipped_folder()):
        return item.keys[0][0].replace(".", "_")
    return "~"


class Session:
    """The plugin object that collects and measures, in the controller and in xdist's workers."""

    def __init__(
        self, config: pytest.Config, run: Run, chosen: Chosen, tally: Tally, *, is_worker: bool
    ) -> None:
        self.run = run
        self._config = config
        self._chosen = chosen
        self._tally = tally
        self._is_worker = is_worker
        self._interrupts = Interrupts()
        self._stop: KeyboardInterrupt | None = None
        self._shown: set[tuple[str, str]] = set()
        self._grouped = chosen.items == "group" or (
            chosen.items is None and len(run.expected(chosen.wanted)) > GROUP_ABOVE
        )

    # -- what is collected ------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(
        self, path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        """Load no __init__.py above the root folder, where it may be anybody's (/tmp)."""
        outside = not path.is_relative_to(self._config.rootpath)
        return pytest.Dir.from_parent(parent, path=path) if outside else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(
        self, module_path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        """Make items of a check file; any other test file of the operator stays pytest's."""
        if not declares_check(module_path):
            return None
        file = CheckFile.from_parent(parent, path=module_path)
        file.checks = self._checks_of(module_path)
        if len(file.checks) > 1:
            file.name = module_path.parent.name  # else `-k memory` also finds what stands beside it
        file.run, file.grouped = self.run, self._grouped
        return file

    def _checks_of(self, path: Path) -> list[Registered]:
        if known := [one for one in self.run.registry if one.path.samefile(path)]:
            return known
        with usage_errors():
            self.run.registry.add(load_file(path))
        return self._checks_of(path)

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Put the shipped checks in the order of their ids, and keep those that were asked for."""
        items.sort(key=_shipped_by_id)
        if self._chosen.wanted is None:
            return
        keep: list[pytest.Item] = []
        dropped: list[pytest.Item] = []
        for item in items:
            strange = isinstance(item, CheckItem) and item.keys[0][0] not in self._chosen.wanted
            (dropped if strange else keep).append(item)
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
            if is_terse(session.config):
                hush(session.config, terminal)
        self._interrupts.hold()
        if handoff := xdist.Handoff.to(session.config):
            handoff.take(self.run)

    def pytest_unconfigure(self) -> None:
        """Give Ctrl-C back to whoever runs pytest inside of a program."""
        self._interrupts.let_go()

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
        xdist.give(node.workerinput, self.run, self._chosen.outputs, self._chosen.found)

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
    def pytest_sessionfinish(self) -> Generator[None, None, None]:
        """Pass the report on, last of all: a sink that fails or hangs takes nothing away."""
        yield
        conclusion = self._tally.conclusion
        if conclusion is not None and conclusion.report.verdicts:
            for trouble in tell(self._config, conclusion.report, conclusion.outputs.path):
                self.run.progress.line(f"sink   {trouble}")

    def _measure(self, items: Sequence[pytest.Item]) -> None:
        keys_of = {item.nodeid: item.keys for item in items if isinstance(item, CheckItem)}
        chosen = [key for keys in keys_of.values() for key in keys]
        order = {key: place for place, key in enumerate(self.run.expected())}
        keys = sorted(chosen, key=lambda key: order.get(key, len(order)))
        self._refuse_too_small(keys)
        self._tally.expect(keys, keys_of)
        if keys:
            self._keep_events(keys)
        if self._chosen.replayed is not None:
            self.run.replay(self._chosen.replayed, keys, self._found)
            self._tally.expect_repairs()
        elif keys:
            try:
                with usage_errors():  # only the nodes could tell that it is wrong
                    self.run.measure(keys, self._found)
            finally:
                self._tally.expect_repairs()
                self._write_measured()

    def _refuse_too_small(self, keys: Sequence[Key]) -> None:
        """End before any node is asked, where the budget has no time for what was selected."""
        stages = stages_needed(self.run.registry, {check for check, _ in keys})
        ahead, wall_s = self._chosen.ahead, self.run.settings.wall_s
        why = replace(ahead.known, stages=frozenset(stages)).too_small(wall_s) if ahead else ""
        if why:
            with usage_errors():
                raise UsageError(f"--preflight-budget={wall_s:g}: {why}")

    def _keep_events(self, keys: Sequence[Key]) -> None:
        """Have every verdict on disk from now on, as soon as it is reached."""
        run, events = self.run, self._chosen.outputs.events
        names = [host.name for host in run.fleet.hosts]
        replayed = self._chosen.replayed
        events.begin(
            Began(
                preflight=__version__,
                run=replayed.nonce if replayed else run.nonce,
                started=at(self._chosen.began_s),
                tier=run.settings.tier,
                nodes=tuple(names),
                origin=run.fleet.origin,
                leaves=run.fleet.leaves,
                owed=owed(keys, names),
            )
        )
        run.on_verdict = events.verdict

    def _write_measured(self) -> None:
        """Write what a replay needs; it cost minutes of a whole fleet, so Ctrl-C waits for it."""
        measured, outputs = self.run.judgement.measured, self._chosen.outputs
        try:
            outputs.write("measured.json", measured.encode())
        except KeyboardInterrupt:
            outputs.write("measured.json", measured.encode())
            raise

    def _found(self, key: Key, verdict: Verdict) -> None:
        """Show a finding when it is known; one line for all verdicts that share its cause."""
        check, nodes = key
        about = fold(verdict.culprits) or verdict.blame or subject(nodes)
        cause = (about, verdict.cause or check)
        if cause not in self._shown:
            self._shown.add(cause)
            self.run.progress.line(finding_line(verdict.outcome, about, check, verdict.sentence))

    def _ways(self) -> Mapping[str, Way]:
        """Find out how each node will be reached; not worth it for a list of what would be run."""
        looks_only = self._config.option.collectonly or self._chosen.replayed is not None
        return {} if looks_only else self.run.ways.known(WAYS_S)

    def pytest_report_header(self) -> list[str]:
        """Say who is judged, how reached, what will run, how long, where the report goes."""
        keys = self.run.expected(self._chosen.wanted)
        nodes = len(self.run.fleet.hosts)
        per_node = sum(len(names) == 1 for _, names in keys) // nodes
        lines = header(
            self.run.fleet,
            reach_words(self.run.fleet.hosts, self._ways(), slurm_job(self.run.fleet)),
            version=__version__,
            tier=self.run.settings.tier,
            fail_fast=self.run.settings.fail_fast,
            budget_s=self.run.settings.wall_s,
            at_most=self.run.settings.at_most,
            per_node=per_node,
            of_fleet=sum(not names for _, names in keys),
            planned=self.run.planned if any(len(names) > 1 for _, names in keys) else None,
            loads=any(self.run.registry[check].check.stage == "local" for check, _ in keys),
            expected=len(keys),
            estimate=self._chosen.estimate,
            where=self._chosen.outputs.shown,
        )
        lines += xdist.warnings(self._config)
        history = self._chosen.history
        if history is not None and history.trouble:
            lines.append(f"history  {history.trouble}")
        width = self._config.get_terminal_writer().fullwidth
        return [
            piece
            for line in lines
            for piece in wrapped(line, first="", indent=" " * 9, width=width)
        ]
