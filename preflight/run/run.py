"""One run: the verdicts expected of it, its stages in order, and how it ended.

It does not know pytest. The plugin asks it for the expected verdicts, lets it measure what the
selected ones need, and then asks for one verdict at a time.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from preflight.burn.burn_in import BURN_SHARE, burn_plan, fit, most_devices, no_time_lines
from preflight.check import STAGES, Stage
from preflight.checks.env.test_nccl_conf import conf_settings
from preflight.core.statistics import grouped
from preflight.fabric.collect import clock_lines
from preflight.fabric.launch import Hooks
from preflight.fabric.planner import restrict_rounds
from preflight.fabric.retest import suspects
from preflight.fabric.samples import Sweep, gc_paused
from preflight.fabric.schedule import Planned, circle_rounds, pairs_of, repair, unscheduled_pairs
from preflight.fabric.sweep_plan import SweepPlan
from preflight.facts.burn import Burned, nvlink_domain
from preflight.run.expected_verdicts import PORTS_S, Eligibility, Selection, least_s, out_of_time
from preflight.run.interface_stage import add_mismatches, interface_mismatches
from preflight.run.judgement import Judgement, Key, Names, stages_needed
from preflight.run.measured import Measured, Progress
from preflight.run.probe_stage import ProbeResult, probe_fleet
from preflight.run.stages import (
    SLOTS,
    BurnStage,
    Nodes,
    PortStage,
    cut_links,
    may_have_rails,
    sweep_fleet,
)
from preflight.transport.ways import Ways
from preflight.verdict import Outcome, Verdict, not_run

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from preflight.core.registry import Registry
    from preflight.core.remote_command import Connection
    from preflight.fabric.judge import Decoded
    from preflight.fabric.schedule import Pairing
    from preflight.fleet.model import Fleet, Host
    from preflight.run.expected_verdicts import Settings


STOPPED_AT_FIRST = not_run("stopped after the first finding (fail-fast)", stopped=True)
_FINE = (Outcome.OK, Outcome.NOT_RUN, Outcome.WAIVED)
_CONTINUE = "to go on: --preflight-fail-fast=never"


class Run:
    """Measures in bulk, stage by stage, judges each stage, and stops as fail-fast says."""

    def __init__(
        self, fleet: Fleet, registry: Registry, settings: Settings, planned: Planned | None = None
    ) -> None:
        """`planned`: the rounds of pairs; without it, the usual ones in order."""
        self.fleet = fleet
        self.registry = registry
        self.settings = settings
        names = [host.name for host in fleet.hosts]
        self.planned = planned or Planned(rounds=circle_rounds(names))
        self.rounds = restrict_rounds(self.planned.rounds, names)
        self.ways = Ways(fleet.hosts)
        self.nonce = secrets.token_hex(16)
        self.judgement = Judgement(fleet, registry, Measured(nonce=self.nonce))
        self.progress = Progress()
        self._selection = self._select(())
        self._connections: dict[str, Connection] = {}
        self._any_failed = False
        self.replayed = False
        """What another run has measured was judged again."""
        self.swept_s = 0.0
        """Wall time from the start of the run to the end of its sweep."""
        self.repairs: list[Key] = []
        """Repairs and retests, which are in no scheduled round: judged after the expected ones."""
        self.stopped: list[Key] = []
        """Subjects that will not be judged because fail-fast ended the run at its first finding."""
        self.on_verdict: Callable[[str, Names, Verdict], None] = lambda *_: None
        """Called with every verdict as soon as it is reached, fine or not."""
        self.on_judged: Callable[[], None] = lambda: None
        """Called when a stage has been judged."""
        self._began = time.monotonic()
        self._ends = self._began + settings.wall_s

    @property
    def seconds(self) -> float:
        """Wall time since the run was made."""
        return time.monotonic() - self._began

    def expected(self, check_ids: Container[str] | None = None) -> list[Key]:
        """Name every verdict expected of this run, in the order in which it will be reached.

        `check_ids`: only of these checks; None or empty: of all checks within the tier.
        """
        subjects: Mapping[str, Sequence[Names]] = {
            "pair": [pair for round_pairs in self.rounds for pair in round_pairs],
            "fleet": [()],
            "node": [(host.name,) for host in self.fleet.hosts],
        }
        return [
            (row.check.id, names)
            for row in self.registry
            if row.check.within(self.settings.tier) and (not check_ids or row.check.id in check_ids)
            for names in subjects[row.subject]
        ]

    def measure(self, selected: Sequence[Key], notify: Callable[[Key, Verdict], None]) -> None:
        """Run the stages that these verdicts need, and judge each stage as it ends.

        `notify` is called with every verdict that is not fine, as soon as it is known.
        """
        self._selection = self._select(selected)
        needed = stages_needed(self.registry, self._selection.nodes_by_check)
        keys = self._selection.with_gates()
        try:
            for stage in STAGES:
                if stage in needed:
                    self._measure_stage(stage)
                    if stage == "reach" and "fabric" in needed:
                        interface_mismatches(self.fleet, self.judgement.measured.facts)
                    if self._judge_stage(stage, keys, notify):
                        why = f"stopped after the {stage} stage (fail-fast); {_CONTINUE}"
                        if later := STAGES[STAGES.index(stage) + 1 :]:
                            self._skip(later, not_run(why, stopped=True))
                        break
        finally:
            self.close()

    def replay(
        self, measured: Measured, selected: Sequence[Key], notify: Callable[[Key, Verdict], None]
    ) -> None:
        """Judge what another run has measured; contacts no node and never stops early."""
        measured = measured.restrict({host.name for host in self.fleet.hosts})
        self._selection = self._select(selected)
        self.nonce, self.replayed = measured.nonce, True
        self.judgement.advance(measured)
        if measured.sweep is not None:
            self._expect_unscheduled(unscheduled_pairs(measured.sweep, pairs_of(self.rounds)))
        keys = self._selection.with_gates()
        for stage in STAGES:
            self._judge_stage(stage, keys, notify)

    def close(self) -> None:
        """Close the connections to all nodes."""
        while self._connections:
            self._connections.popitem()[1].close()
        self.ways.close()

    def _measure_stage(self, stage: Stage) -> None:
        """Measure one stage, or record why its checks will not be judged."""
        if stage == "facts":
            return  # they came with `reach`
        left_s = self._ends - time.monotonic()
        if left_s < least_s(stage):
            self._skip(STAGES[STAGES.index(stage) :], out_of_time(stage, self.settings.wall_s))
        elif stage == "reach":
            self._probe(left_s)
        elif stage == "net":
            self._try_ports(min(left_s, PORTS_S))
        elif stage == "local":
            self._burn_in(left_s)
        else:
            self._sweep(left_s)

    def _probe(self, left_s: float) -> None:
        arrived: dict[str, ProbeResult] = {}
        try:
            reached = probe_fleet(
                self.fleet.hosts,
                self.ways,
                self.nonce,
                deadline_s=left_s,
                at_most=self.settings.at_most,
                progress=lambda *at: self.progress.step("probing", *at),
                sections=self.settings.sections,
                kernel_log_since_s=self.settings.kernel_log_since_s,
                job=self.fleet.job,
                names=self.fleet.master_names,
                on_result=arrived.__setitem__,
            )
        except BaseException:
            self._store_probed(dict(arrived))
            self._judge_probed(arrived)
            raise
        self._store_probed(reached)

    def _store_probed(self, reached: Mapping[str, ProbeResult]) -> None:
        self._connections = {n: r.connection for n, r in reached.items() if r.connection}
        self._update(
            reach={name: r.reach for name, r in reached.items()},
            facts={name: r.facts for name, r in reached.items() if r.facts},
        )

    def _try_ports(self, deadline_s: float) -> None:
        hosts = self._eligibility().eligible("net")
        names = {host.name for host in hosts}
        partners = grouped(
            ends
            for round_pairs in self.rounds
            for a, b in round_pairs
            if a in names and b in names
            for ends in ((a, b), (b, a))
        )
        nodes, master = self._nodes(hosts, deadline_s), self.fleet.master
        stage = PortStage(nodes, master, self.fleet.job.master_port, partners)
        ports, troubles = stage.run(lambda *at: self.progress.step("ports", *at))
        self._update(ports=ports, port_troubles=troubles)

    def _burn_in(self, left_s: float) -> None:
        """Burn in the devices of all nodes; the sweep keeps its share of the time."""
        eligibility = self._eligibility()
        hosts = eligibility.loadable("local")
        facts = self.judgement.measured.facts
        most = most_devices(
            (facts[host.name] for host in hosts if host.name in facts),
            slots=self.fleet.job.nproc_per_node or SLOTS,
        )
        plan = fit(burn_plan(self.settings.tier, self.planned.seed), left_s, most)
        nodes = self._nodes(hosts, max(least_s("local"), left_s * BURN_SHARE))
        stage = BurnStage(nodes, facts, plan, self.fleet.job)
        reasons = eligibility.left_out("local", hosts)
        left_out = {name: Burned(left_out=why) for name, why in reasons.items()}
        try:
            burned = stage.run(lambda *at: self.progress.step("burn-in", *at))
        except KeyboardInterrupt:
            self._update(burned={**stage.partial_results(), **left_out}, planned=self.planned)
            self._judge_burned()
            raise
        for line in no_time_lines(burned):
            self.progress.line(f"burn-in  {line}")
        self._update(burned={**burned, **left_out}, planned=self.planned)

    def _sweep(self, deadline_s: float) -> None:
        facts = self.judgement.measured.facts
        mismatches = interface_mismatches(self.fleet, facts)
        eligibility, reasons = self._eligibility(), mismatches.reasons
        loadable = eligibility.loadable("fabric")
        hosts = [host for host in loadable if host.name not in reasons]
        rails = (may_have_rails(self._connections[h.name], facts.get(h.name)) for h in hosts)
        if hosts and not self.rounds and not any(rails):
            return  # one node with one rail: there is nothing to measure
        left_out = eligibility.left_out("fabric", hosts)
        left_out |= {host.name: reasons[host.name] for host in loadable if host.name in reasons}
        plan = self._sweep_plan(hosts, left_out)
        hooks = Hooks(
            lambda *at: self.progress.step("import torch", *at),
            lambda *at: self.progress.step("pairs", *at),
            lambda so_far: self._judge_partial(add_mismatches(so_far, mismatches)),
            suspects,
        )
        nodes, rate = self._nodes(hosts, deadline_s), self.settings.soak_rate
        sweep = add_mismatches(sweep_fleet(nodes, plan, self.fleet.job, hooks, rate), mismatches)
        try:
            self._store_sweep(sweep)
        except KeyboardInterrupt:
            self._judge_partial(sweep)
            raise

    def _sweep_plan(self, hosts: Sequence[Host], left_out: dict[str, str]) -> SweepPlan:
        """Plan the rounds, with pairs that repair those of the nodes that are left out."""
        repaired = repair(self.rounds, [host.name for host in self.fleet.hosts], left_out)
        planned = pairs_of(self.rounds)
        self._expect_unscheduled([p for pairs in repaired for p in pairs if p not in planned])
        measured, inside = self.judgement.measured, self._selection.measures_nodes
        domains = {name: nvlink_domain(node.gpus or ()) for name, node in measured.facts.items()}
        return SweepPlan(
            nodes=(*(host.name for host in hosts), *left_out),
            rounds=tuple(
                tuple(dict.fromkeys(scheduled + added))
                for scheduled, added in zip(self.rounds, repaired, strict=True)
            ),
            left_out=left_out,
            interface=self.fleet.interface,
            leaves=self.planned.leaves,
            seed=self.planned.seed,
            inside=inside,
            domains={name: domain for name, domain in domains.items() if domain and inside},
            stop_early=self.settings.fail_fast == "first",
            cut=cut_links(measured.ports),
            unpinned=self._unpinned(),
            keep_logs=self.settings.keep_nccl_logs,
        )

    def _nodes(self, hosts: Sequence[Host], deadline_s: float) -> Nodes:
        return Nodes(hosts, self._connections, self.nonce, deadline_s)

    def _select(self, selected: Sequence[Key]) -> Selection:
        return Selection(self.fleet, self.registry, self.judgement, selected)

    def _eligibility(self) -> Eligibility:
        busy = self.settings.even_if_busy
        return Eligibility(self.fleet.hosts, self.judgement, self._connections, busy)

    def _expect_unscheduled(self, pairs: Sequence[Pairing]) -> None:
        """Expect a verdict on each of these pairs: every measured pair is reported."""
        checks = self._selection.pair_checks
        self.repairs = [(check_id, pair) for check_id in checks for pair in pairs]

    def _unpinned(self) -> frozenset[str]:
        """Nodes on which NCCL chooses its interface as in the job, by variables or nccl.conf."""
        facts = self.judgement.measured.facts
        return frozenset(
            host.name
            for host in self.fleet.hosts
            if self.fleet.job.environ_of(host.name) is not None
            or (node := facts.get(host.name)) is None
            or "NCCL_SOCKET_IFNAME" in conf_settings(node.nccl_conf or ())
        )

    def _store_sweep(self, sweep: Sweep) -> None:
        self.swept_s = self.seconds
        for line in clock_lines(sweep):
            self.progress.line(f"clock  {line}")
        self._expect_unscheduled(unscheduled_pairs(sweep, pairs_of(self.rounds)))
        self._update(sweep=sweep, planned=self.planned)

    def _judge_partial(self, sweep: Sweep) -> None:
        """Judge what was measured before an interrupt; the rest is not judged."""
        self._store_sweep(sweep)
        for check_id, nodes in [*self._selection.keys, *self.repairs]:
            is_fabric = self.registry[check_id].check.stage == "fabric"
            if is_fabric and was_swept(self.judgement.sweep, check_id, nodes):
                self.judgement.verdict(check_id, nodes)

    def _judge_probed(self, arrived: Container[str]) -> None:
        """Judge the nodes that had answered before the stage was interrupted."""
        for check_id, nodes in self._selection.keys:
            first_stages = self.registry[check_id].check.stage in ("reach", "facts")
            if first_stages and nodes and all(name in arrived for name in nodes):
                self.judgement.verdict(check_id, nodes)

    def _judge_burned(self) -> None:
        """After an interrupt, judge the checks that need no peers, as those may be missing.

        These are the checks that drain: they judge a node by its own answers alone.
        """
        for check_id, nodes in self._selection.keys:
            check = self.registry[check_id].check
            burn = self.judgement.burn.get(nodes[0]) if len(nodes) == 1 else None
            if burn is None or check.stage != "local" or not check.drains:
                continue
            if burn.state == "measured" or burn.wrong or burn.lost:
                self.judgement.verdict(check_id, nodes)

    @gc_paused()
    def _judge_stage(
        self, stage: Stage, selected: Sequence[Key], notify: Callable[[Key, Verdict], None]
    ) -> bool:
        """Judge the stage's selected subjects; return whether the run must stop here."""
        fail_fast, keys = self.settings.fail_fast, [*selected, *self.repairs]
        checks = {entry.check.id for entry in self.registry if entry.check.stage == stage}
        try:
            for key in [key for key in keys if key[0] in checks]:
                verdict = self.judgement.verdict(*key)
                self.on_verdict(*key, verdict)
                if verdict.outcome not in _FINE:
                    notify(key, verdict)
                    self._any_failed = self._any_failed or verdict.makes_not_ready
                if self._any_failed and fail_fast == "first":
                    judged = self.judgement.verdicts()
                    self.stopped = [key for key in keys if key not in judged]
                    for unjudged in self.stopped:
                        self.judgement.skip(*unjudged, STOPPED_AT_FIRST)
                    return True
        finally:
            self.on_judged()
        # Reach and facts are one round trip, so their findings are shown together.
        return self._any_failed and fail_fast == "stage" and stage != "reach"

    def _skip(self, stages: Sequence[Stage], verdict: Verdict) -> None:
        """Skip these stages; a reason that is already recorded stands."""
        skipped = dict(self.judgement.measured.skipped)
        for stage in stages:
            skipped.setdefault(stage, verdict)
        self._update(skipped=skipped)

    def _update(self, **parts: object) -> None:
        self.judgement.advance(msgspec.structs.replace(self.judgement.measured, **parts))


NVLINK_DOMAIN = "fabric.nvlink_domain"


def was_swept(decoded: Decoded, check_id: str, nodes: Names) -> bool:
    """Whether a sweep measured a pair, the inside of a node, or NVLink from it to others."""
    if check_id == NVLINK_DOMAIN:
        over_nvlink = decoded.over_nvlink.get(nodes[0])
        return over_nvlink is None or over_nvlink.state != "not_run"
    if len(nodes) == 1:
        inside = decoded.inside.get(nodes[0])
        return inside is not None and inside.state != "not_run"
    pair = decoded.pairs.get((nodes[0], nodes[1])) if nodes else None
    return pair is not None and (pair.state != "not_run" or bool(pair.trouble))
