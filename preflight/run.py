"""One run: who is expected to be judged on what, the stages in their order, and how it ended.

Knows nothing of pytest. The plugin asks it for the expected verdicts, lets it measure what the
selected ones need, and then asks for one verdict at a time.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from preflight.carried import Carried
from preflight.check import STAGES, Stage, Tier
from preflight.fabric.besides import besides, pairs_of
from preflight.fabric.clocks import clock_lines
from preflight.fabric.planner import Planned, within
from preflight.fabric.schedule import circle_rounds, repair
from preflight.fabric.soak import DEEP_RATE
from preflight.fabric.suspects import suspects
from preflight.facts.busy import busy_with
from preflight.facts.cut_links import cut_links
from preflight.judgement import Judgement, Names, stages_needed
from preflight.stages.measured import Measured
from preflight.stages.ports import PortPlan, PortStage
from preflight.stages.probe import Reached, probe_fleet
from preflight.stages.sweep import may_have_rails, sweep_fleet
from preflight.transport.fanout import SETUP_AT_MOST
from preflight.transport.ways import Ways
from preflight.verdict import Outcome, Verdict, not_run

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from preflight.fabric.samples import Sweep
    from preflight.fabric.schedule import Pairing
    from preflight.fleet.model import Fleet, Host
    from preflight.registry import Registry
    from preflight.stages.progress import Progress
    from preflight.transport.protocol import Connection

FailFast = Literal["stage", "first", "never"]

BUDGET_S: dict[Tier, float] = {"prolog": 8, "quick": 60, "standard": 300, "deep": 3600}
"""Wall time of a run by tier, unless --preflight-budget says otherwise."""

PORTS_S = 30.0
"""For the port stage; a blocked port costs each node one connect deadline of 3 s."""

_LEAST_S = 1.0  # no stage is begun with less

STOPPED_AT_FIRST = not_run("stopped after the first finding (fail-fast)", stopped=True)

Key = tuple[str, Names]
"""(check id, subject) of one expected verdict."""


class Settings(Struct, frozen=True, kw_only=True):
    """What the operator chose for this run."""

    tier: Tier = "quick"
    fail_fast: FailFast = "stage"
    budget_s: float | None = None
    even_if_busy: bool = False
    """Load nodes although somebody works on their GPUs."""
    sections: tuple[Carried, ...] = ()
    """The site's own sections of the probe."""
    at_most: int = SETUP_AT_MOST
    """Connections set up at once."""
    catch_rate: float | None = None
    """Events per second of load that the sweep's soak is to catch; None leaves it to the tier."""

    @property
    def soak_rate(self) -> float | None:
        """What the soak is to catch; None for the short one."""
        deep = DEEP_RATE if self.tier == "deep" else None
        return deep if self.catch_rate is None else self.catch_rate

    @property
    def wall_s(self) -> float:
        """The run's time budget in seconds."""
        return self.budget_s if self.budget_s is not None else BUDGET_S[self.tier]


class Run:
    """Measures in bulk, stage by stage; judges as it goes; stops when told to."""

    def __init__(
        self,
        fleet: Fleet,
        registry: Registry,
        settings: Settings,
        progress: Progress,
        planned: Planned | None = None,
    ) -> None:
        """`planned`: the rounds of pairs; without it, the usual ones in order."""
        self.fleet = fleet
        self.registry = registry
        self.settings = settings
        names = [host.name for host in fleet.hosts]
        self.planned = planned or Planned(rounds=circle_rounds(names))
        self.rounds = within(self.planned.rounds, names)
        self.ways = Ways(fleet.hosts)
        self.nonce = secrets.token_hex(16)
        self.judgement = Judgement(fleet, registry, Measured(nonce=self.nonce))
        self.progress = progress
        self._connections: dict[str, Connection] = {}
        self._condemned = False
        self.swept_s = 0.0
        """Wall time from the start of the run to the end of its sweep."""
        self.repairs: list[Key] = []
        """Repairs and retests, which no scheduled round holds: judged beside the expected ones."""
        self._pair_checks: tuple[str, ...] = ()
        """Checks of pairs that were selected."""
        self.stopped: list[Key] = []
        """Subjects that will not be judged because fail-fast ended the run at its first finding."""
        self._began = time.monotonic()
        self._ends = self._began + settings.wall_s

    @property
    def seconds(self) -> float:
        """Wall time since the run was made."""
        return time.monotonic() - self._began

    def expected(self, check_ids: Iterable[str] | None = None) -> list[Key]:
        """Name every verdict that this run owes, in the order in which it will be reached."""
        wanted = None if check_ids is None else set(check_ids)
        pairs = [pair for around in self.rounds for pair in around]
        keys: list[Key] = []
        for registered in self.registry:
            check = registered.check
            if not check.within(self.settings.tier) or (wanted and check.id not in wanted):
                continue
            if registered.subject == "pair":
                keys += [(check.id, pair) for pair in pairs]
            elif registered.subject == "fleet":
                keys.append((check.id, ()))
            else:
                keys += [(check.id, (host.name,)) for host in self.fleet.hosts]
        return keys

    def measure(self, selected: Sequence[Key], found: Callable[[Key, Verdict], None]) -> None:
        """Run the stages that these verdicts need, and judge each stage as it ends.

        `found` hears of every verdict that is not fine, as soon as it is known.
        """
        self._select(selected)
        needed = stages_needed(self.registry, {check_id for check_id, _ in selected})
        watched = [*dict.fromkeys([*self._gates(selected), *selected])]
        try:
            for stage in STAGES:
                if stage in needed:
                    self._measure_stage(stage, selected)
                    if self._judge_stage(stage, watched, found):
                        self._skip_after(stage)
                        break
        finally:
            self.close()

    def replay(
        self, measured: Measured, selected: Sequence[Key], found: Callable[[Key, Verdict], None]
    ) -> None:
        """Judge what another run has measured; contacts nobody and never stops early."""
        self._select(selected)
        self.nonce = measured.nonce
        self.judgement.advance(measured)
        if measured.sweep is not None:
            self._besides(besides(measured.sweep, pairs_of(self.rounds)))
        watched = [*dict.fromkeys([*self._gates(selected), *selected])]
        for stage in STAGES:
            self._judge_stage(stage, watched, found)

    def _gates(self, selected: Sequence[Key]) -> list[Key]:
        """Name the verdicts that the selected ones wait for: a gate that is shut is a finding.

        Were it not judged itself, a node that is down would leave nothing but `not_run` behind.
        """
        ways_in = tuple(r.check.id for r in self.registry if r.check.stage == "reach")
        gates: dict[str, set[str]] = {}

        def spread(check_id: str, names: set[str]) -> None:
            check = self.registry[check_id].check
            for gate in check.requires if check.stage == "reach" else (*ways_in, *check.requires):
                new = names - gates.setdefault(gate, set())
                if new:
                    gates[gate] |= new
                    spread(gate, new)

        subjects: dict[str, set[str]] = {}
        everyone = [host.name for host in self.fleet.hosts]
        for check_id, names in selected:
            subjects.setdefault(check_id, set()).update(names or everyone)
        for check_id, nodes in subjects.items():
            spread(check_id, nodes)
        return [
            (registered.check.id, (host.name,))
            for registered in self.registry
            for host in self.fleet.hosts
            if host.name in gates.get(registered.check.id, ())
        ]

    def close(self) -> None:
        """Leave every node."""
        while self._connections:
            self._connections.popitem()[1].close()
        self.ways.close()

    def _measure_stage(self, stage: Stage, selected: Sequence[Key]) -> None:
        """Measure one stage, or record why nobody will be judged on it."""
        if stage in ("facts", "local"):
            return  # `facts` came with `reach`; `local` has no checks until burn-in is there
        left_s = self._ends - time.monotonic()
        if left_s < _LEAST_S:
            self._skip_from(stage, _out_of_time(stage, self.settings.wall_s))
        elif stage == "reach":
            self._probe(left_s, selected)
        elif stage == "net":
            self._try_ports(min(left_s, PORTS_S))
        else:
            self._sweep(left_s, selected)

    def _probe(self, left_s: float, selected: Sequence[Key]) -> None:
        arrived: dict[str, Reached] = {}
        try:
            reached = probe_fleet(
                self.fleet.hosts,
                self.ways,
                self.nonce,
                deadline_s=left_s,
                at_most=self.settings.at_most,
                progress=lambda *at: self.progress.step("probing", *at),
                sections=self.settings.sections,
                arrived=arrived.__setitem__,
            )
        except BaseException:
            self._take(dict(arrived))
            self._judge_arrived(arrived, selected)
            raise
        self._take(reached)

    def _take(self, reached: Mapping[str, Reached]) -> None:
        self._connections = {n: r.connection for n, r in reached.items() if r.connection}
        self._set(
            reach={name: r.reach for name, r in reached.items()},
            facts={name: r.facts for name, r in reached.items() if r.facts},
        )

    def _judge_arrived(self, names: Container[str], selected: Sequence[Key]) -> None:
        """Judge those who had answered before an interrupt; the rest stays open."""
        for check_id, nodes in selected:
            first_stages = self.registry[check_id].check.stage in ("reach", "facts")
            if first_stages and nodes and all(name in names for name in nodes):
                self.judgement.verdict(check_id, nodes)

    def _try_ports(self, deadline_s: float) -> None:
        hosts = self._able("net")
        names = {host.name for host in hosts}
        partners: dict[str, list[str]] = {}
        for a, b in (pair for around in self.rounds for pair in around):
            if a in names and b in names:
                partners.setdefault(a, []).append(b)
                partners.setdefault(b, []).append(a)
        plan = PortPlan(
            master=self.fleet.master.name,
            master_port=self.fleet.job.master_port,
            partners={name: tuple(others) for name, others in partners.items()},
        )
        stage = PortStage(hosts, self._connections, plan, self.nonce, deadline_s)
        ports, troubles = stage.run(lambda *at: self.progress.step("ports", *at))
        self._set(ports=ports, port_troubles=troubles)

    def _sweep(self, deadline_s: float, selected: Sequence[Key]) -> None:
        hosts = [host for host in self._able("fabric") if not self._hindered(host.name)]
        if hosts and not self.rounds and not any(map(self._may_have_rails, hosts)):
            return  # one node with one rail: nothing to start a launch for
        able = {host.name for host in hosts}
        out = {
            host.name: self.judgement.may_take_part(host.name, "fabric")
            or self._hindered(host.name)
            or "no connection"
            for host in self.fleet.hosts
            if host.name not in able
        }
        names = [host.name for host in self.fleet.hosts]
        repaired = repair(self.rounds, names, out)
        self._besides(repaired.new)
        sweep = sweep_fleet(
            hosts,
            self._connections,
            tuple(
                tuple(dict.fromkeys(planned + mended))
                for planned, mended in zip(self.rounds, repaired.rounds, strict=True)
            ),
            leaves=self.planned.leaves,
            seed=self.planned.seed,
            left_out=out,
            nonce=self.nonce,
            deadline_s=deadline_s,
            interface=self.fleet.interface,
            catch_rate=self.settings.soak_rate,
            suspects=suspects,
            inside=self._looks_inside(selected),
            stop_early=self.settings.fail_fast == "first",
            cut=cut_links(self.judgement.measured.ports),
            progress=lambda *at: self.progress.step("pairs", *at),
            interrupted=lambda so_far: self._judge_so_far(so_far, selected),
        )
        try:
            self._keep(sweep)
        except KeyboardInterrupt:
            self._judge_so_far(sweep, selected)
            raise

    def _select(self, selected: Sequence[Key]) -> None:
        wanted = {check_id for check_id, _ in selected}
        own = (one for one in self.registry if one.subject == "pair")
        self._pair_checks = tuple(one.check.id for one in own if one.check.id in wanted)

    def _besides(self, pairs: Sequence[Pairing]) -> None:
        """Owe a verdict on each of them: what was measured must not be silent."""
        self.repairs = [(check_id, pair) for check_id in self._pair_checks for pair in pairs]

    def _may_have_rails(self, host: Host) -> bool:
        facts = self.judgement.measured.facts.get(host.name)
        return may_have_rails(self._connections[host.name], facts)

    def _looks_inside(self, selected: Sequence[Key]) -> bool:
        """Whether a check of single nodes wants the sweep."""
        asked = (self.registry[check_id] for check_id in {check_id for check_id, _ in selected})
        return any(one.check.stage == "fabric" and one.subject == "node" for one in asked)

    def _keep(self, sweep: Sweep) -> None:
        self.swept_s = self.seconds
        for line in clock_lines(sweep):
            self.progress.line(f"clock  {line}")
        self._besides(besides(sweep, pairs_of(self.rounds)))
        self._set(sweep=sweep, planned=self.planned)

    def _judge_so_far(self, sweep: Sweep, selected: Sequence[Key]) -> None:
        """Judge what was measured before an interrupt; the rest stays open."""
        self._keep(sweep)
        for check_id, nodes in (*selected, *self.repairs):
            if self.registry[check_id].check.stage == "fabric" and self._was_measured(nodes):
                self.judgement.verdict(check_id, nodes)

    def _was_measured(self, nodes: Names) -> bool:
        decoded = self.judgement.sweep
        if len(nodes) == 1:
            inside = decoded.inside.get(nodes[0])
            return inside is not None and inside.state != "not_run"
        pair = decoded.pairs.get((nodes[0], nodes[1])) if nodes else None
        return pair is not None and (pair.state != "not_run" or pair.trouble)

    def _able(self, stage: Stage) -> list[Host]:
        """Ask the judges of a stage's prerequisites who can take part in it."""
        return [
            host
            for host in self.fleet.hosts
            if host.name in self._connections and not self.judgement.may_take_part(host.name, stage)
        ]

    def _hindered(self, name: str) -> str:
        """Say why a node that may be loaded must not or cannot be, if so."""
        reach = self.judgement.measured.reach.get(name)
        if reach is not None and reach.shortfall is not None:
            return f"reach.answer of {name}: {reach.shortfall.sentence}"
        return self._busy(name)

    def _busy(self, name: str) -> str:
        """Say whose work a measurement under load would disturb on a node, if anyone's."""
        facts = self.judgement.measured.facts.get(name)
        if self.settings.even_if_busy or facts is None:
            return ""
        work = busy_with(facts)
        return f"busy: {work} works on its GPUs (--preflight-even-if-busy)" if work else ""

    def _judge_stage(
        self, stage: Stage, selected: Sequence[Key], found: Callable[[Key, Verdict], None]
    ) -> bool:
        """Judge the stage's selected subjects; say whether the run must stop here."""
        fail_fast = self.settings.fail_fast
        for key in (*selected, *self.repairs):
            if self.registry[key[0]].check.stage != stage:
                continue
            verdict = self.judgement.verdict(*key)
            if verdict.outcome not in (Outcome.OK, Outcome.NOT_RUN):
                found(key, verdict)
            self._condemned = self._condemned or verdict.condemns
            if self._condemned and fail_fast == "first":
                self._settle_rest([*selected, *self.repairs])
                return True
        # Reach and facts are one round trip, so their findings are shown together.
        return self._condemned and fail_fast == "stage" and stage != "reach"

    def _settle_rest(self, selected: Sequence[Key]) -> None:
        known = self.judgement.known()
        self.stopped = [key for key in selected if key not in known]
        for key in self.stopped:
            self.judgement.skip(*key, STOPPED_AT_FIRST)

    def _skip_after(self, stage: Stage) -> None:
        on = "to go on: --preflight-fail-fast=never"
        stopped = not_run(f"stopped after the {stage} stage (fail-fast); {on}", stopped=True)
        if later := STAGES[STAGES.index(stage) + 1 :]:
            self._skip_from(later[0], stopped)

    def _skip_from(self, stage: Stage, verdict: Verdict) -> None:
        """Measure neither it nor what comes after it; a reason that is known already stands."""
        skipped = dict(self.judgement.measured.skipped)
        for later in STAGES[STAGES.index(stage) :]:
            skipped.setdefault(later, verdict)
        self._set(skipped=skipped)

    def _set(self, **parts: object) -> None:
        self.judgement.advance(msgspec.structs.replace(self.judgement.measured, **parts))


def _out_of_time(stage: Stage, wall_s: float) -> Verdict:
    """No node's fault, so nobody is condemned for it."""
    return not_run(
        f"of the budget of {wall_s:g} s less than {_LEAST_S:g} s was left for the {stage} stage; "
        "give more: --preflight-budget SECONDS",
        stopped=True,
    )
