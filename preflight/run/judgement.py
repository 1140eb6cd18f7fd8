"""Judges what was measured, for the gates of the stages, the pytest items and replays.

Waivers, switched-off checks and a site's numbers show in the verdict itself, so that no reader can
miss them.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.checks.fleet_view import FleetView, whole_fleet
from preflight.core.registry import Registered, Registry, broken
from preflight.core.statistics import grouped
from preflight.core.thresholds import Override, Thresholds, describe_override
from preflight.facts.model import Driver, Facts, bare_facts
from preflight.facts.node import Group, Net, Node, Reach
from preflight.fleet.inventory_tables import SWEEP_PREFIXES
from preflight.fleet.model import UNWAIVABLE, Fleet, Host, Waiver, today
from preflight.fleet.nodeset import fold
from preflight.verdict import UNSEEN, Outcome, Verdict, not_run

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from preflight.check import Check, Stage
    from preflight.fabric.judge import Decoded
    from preflight.fabric.pair_summary import Pair
    from preflight.facts.burn import Burn
    from preflight.run.measured import Measured


Names = tuple[str, ...]
"""The nodes of a subject: one, the two of a pair in fleet order, or none for the whole fleet."""

Key = tuple[str, Names]
"""(check id, subject) of one expected verdict."""


_NO_FACTS = replace(bare_facts(), driver=Driver("absent"), problems=("it gave no facts",))
"""The facts of a node that never answered, for the `reach.*` checks: every section is missing."""


class Judgement:
    """Verdicts on demand, each reached once, over what has been measured so far."""

    def __init__(self, fleet: Fleet, registry: Registry, measured: Measured) -> None:
        self._fleet = fleet
        self._registry = registry
        self._hosts = {host.name: host for host in fleet.hosts}
        self._verdicts: dict[tuple[str, Names], Verdict] = {}
        self._nodes: dict[str, Node] = {}
        self._closed_gates: dict[tuple[str, ...], dict[str, str]] = {}
        self._sweep_numbers: dict[str, Override] = {}
        """The site's numbers with which the sweep was decoded."""
        self._switched_off = {check for host in fleet.hosts for check in host.off}
        self._waivers = [waiver for waiver in fleet.waivers if not waiver.expired(today())]
        self._fleet_numbers = _fleet_overrides(fleet.hosts)
        self.measured = measured

    def advance(self, measured: Measured) -> None:
        """Add the results of a further stage; verdicts already reached stand."""
        self.measured = measured
        self._nodes.clear()
        for derived in ("sweep", "burn", "_groups", "_fleet_net"):
            self.__dict__.pop(derived, None)

    def verdict(self, check_id: str, names: Names) -> Verdict:
        """Judge one subject by one check, or say why that is not possible."""
        key = (check_id, names)
        verdict = self._verdicts.get(key)
        if verdict is None:
            if why := self.why_off(check_id, names):
                verdict = not_run(why, off=True)
            else:
                verdict = self._reach_verdict(self._registry[check_id], names)
            if self._waivers:
                verdict = waive(check_id, names, verdict, self._waivers, self._hosts)
            self._verdicts[key] = verdict
        return verdict

    def why_off(self, check_id: str, names: Names) -> str:
        """Why a subject is not judged, if the site switched the check off for it; else ""."""
        if check_id not in self._switched_off:
            return ""
        hosts = [self._hosts[name] for name in names] or list(self._fleet.hosts)
        reasons = switched_off(check_id, hosts)
        if not reasons or (not names and len(reasons) < len(hosts)):
            return ""
        return next(iter(reasons.values())) if names else f"{check_id} is switched off for all"

    def skip(self, check_id: str, names: Names, verdict: Verdict) -> None:
        """Set the verdict of a subject that will not be judged, unless it was judged already."""
        self._verdicts.setdefault((check_id, names), verdict)

    def verdicts(self) -> dict[tuple[str, Names], Verdict]:
        """Every verdict reached so far."""
        return dict(self._verdicts)

    def why_excluded(self, name: str, stage: Stage) -> str:
        """Return why a node must be left out of a stage, or "" if it may take part.

        A gate within the stage itself does not count: it can be judged only afterwards.
        """
        for check in _gating(self._registry, stage):
            blocker = self._blocker(check, (name,), before=stage)
            if blocker:
                return blocker
        return ""

    def _reach_verdict(self, registered: Registered, names: Names) -> Verdict:
        skipped = self.measured.skipped.get(registered.check.stage)
        if skipped is not None:
            return skipped
        if registered.subject == "fleet":
            return self._judge_fleet(registered)
        blocker = self._blocker(registered.check, names)
        if blocker:
            return not_run(blocker, blocked=True)
        if registered.subject == "pair":
            pair = self.sweep.pairs.get((names[0], names[1]))
            if pair is None:
                return not_run("the sweep did not reach this pair")
            return self._conclude(registered, pair, Thresholds())
        node = self._node(names[0])
        node.limit.used.clear()
        return self._conclude(registered, node, node.limit)

    def _conclude(
        self, registered: Registered, subject: Node | Pair | FleetView, limit: Thresholds
    ) -> Verdict:
        """Judge, and name the site's numbers that decided; all of a sweep's count as used.

        A verdict that blames a node outside this fleet is refused: no node would be left out.
        """
        verdict = registered.conclude(subject)
        for name in (*verdict.culprits, *verdict.suspects):
            if name not in self._hosts:
                return broken(f"{registered.check.id} blames {name!a}, which is not in this fleet")
        sweep_numbers = self._sweep_numbers if registered.check.stage == "fabric" else {}
        return with_site_numbers(verdict, limit.used | sweep_numbers)

    def _judge_fleet(self, registered: Registered) -> Verdict:
        """Judge the nodes whose gates are open, and name the others: `ok` does not cover those."""
        view = self.fleet_view(registered.check)
        if not view.nodes:
            why = next(iter(view.left_out.values()))
            return not_run(f"no node to judge: {why}", blocked=True)
        limit = Thresholds(self._fleet_numbers)
        view = dataclasses.replace(view, limit=limit)
        verdict = self._conclude(registered, view, limit)
        if verdict.outcome is Outcome.BROKEN:
            return verdict
        unseen = f"; not checked: {fold(view.left_out)}" if view.left_out else ""
        return replace(
            verdict,
            sentence=verdict.sentence + unseen,
            evidence={**verdict.evidence, UNSEEN: dict(view.left_out)},
        )

    def fleet_view(self, check: Check) -> FleetView:
        """The whole fleet for a check: the nodes whose gates are open, and why not the others."""
        left_out = {name: self._blocker(check, (name,)) for name in self._hosts}
        left_out |= {n: self._why_unreached(n) for n in self._hosts if n not in self.measured.facts}
        left_out |= switched_off(check.id, self._fleet.hosts)
        return whole_fleet(
            {name: self._node(name) for name, why in left_out.items() if not why},
            {name: why for name, why in left_out.items() if why},
            self.sweep.pairs if check.stage == "fabric" else {},
        )

    def _blocker(self, check: Check, names: Names, before: Stage | None = None) -> str:
        gates = check.requires
        if before is not None:
            gates = tuple(gate for gate in gates if self._registry[gate].check.stage != before)
        for name in names:
            if closed := self._closed_gate(gates, name):
                return closed
            if check.stage != "reach" and name not in self.measured.facts:
                return self._why_unreached(name)
        return ""

    def _closed_gate(self, gates: tuple[str, ...], name: str) -> str:
        """Return which of these gates is closed for a node; many checks have the same gates."""
        by_node = self._closed_gates.setdefault(gates, {})
        if name not in by_node:
            by_node[name] = next(filter(None, (self._why_closed(gate, name) for gate in gates)), "")
        return by_node[name]

    def _why_closed(self, required: str, name: str) -> str:
        gate = self.verdict(required, (name,))
        if gate.outcome is Outcome.OK:
            return ""
        if gate.evidence.get("blocked") is True:
            return gate.sentence
        bad = gate.outcome is Outcome.BROKEN or (gate.makes_not_ready and gate.blocks)
        return f"{required} of {name}: {gate.sentence}" if bad else ""

    def _why_unreached(self, name: str) -> str:
        reach = self.measured.reach.get(name)
        step = f"reach.{reach.failed}" if reach and reach.failed else "reach"
        return f"{step} of {name}: {reach.sentence if reach else 'it was not asked'}"

    def _node(self, name: str) -> Node:
        if name not in self._nodes:
            host, decoded = self._hosts[name], self.sweep if self.measured.sweep else None
            self._nodes[name] = Node(
                name=name,
                expected=host.expected,
                reach=self.measured.reach.get(name, Reach(host.transport)),
                facts=self.measured.facts.get(name, _NO_FACTS),
                group=self._groups[host.group],
                job=self._fleet.job,
                net=self._net(name),
                inside=decoded.inside.get(name) if decoded else None,
                over_nvlink=decoded.over_nvlink.get(name) if decoded else None,
                burn=self.burn.get(name) if self.measured.burned else None,
                limit=Thresholds(host.expected.limits),
            )
        return self._nodes[name]

    @cached_property
    def _groups(self) -> dict[str, Group]:
        members: dict[str, dict[str, Facts]] = {host.group: {} for host in self._fleet.hosts}
        for name, facts in self.measured.facts.items():
            if name in self._hosts:
                members[self._hosts[name].group][name] = facts
        return {name: Group(name, facts_by_name) for name, facts_by_name in members.items()}

    @cached_property
    def _fleet_net(self) -> Net:
        """The port stage for all nodes alike: every connection attempt, by its target."""
        ports = self.measured.ports
        tried = [(name, attempt) for name, report in ports.items() for attempt in report.attempts]
        by_target = grouped((attempt.target, (name, attempt)) for name, attempt in tried)
        return Net(
            master=self._fleet.master.name,
            master_port_origin=self._fleet.job.master_port_origin,
            others_to_master=tuple(pair for pair in tried if pair[1].kind == "master"),
            others_to={target: tuple(attempts) for target, attempts in by_target.items()},
            nodes=len(self._fleet.hosts),
        )

    def _net(self, name: str) -> Net:
        return dataclasses.replace(
            self._fleet_net,
            own=self.measured.ports.get(name),
            trouble=self.measured.port_troubles.get(name, ""),
            is_master=name == self._fleet_net.master,
            to_me=self._fleet_net.others_to.get(name, ()),
        )

    @cached_property
    def sweep(self) -> Decoded:
        """The sweep compared, decoded and blamed, once; empty where there was none."""
        from preflight.fabric.judge import Decoded, judge_sweep  # where only facts are judged

        measured, planned, limit = self.measured.sweep, self.measured.planned, self.sweep_limits
        self._sweep_numbers = limit.used
        if measured is None:
            return Decoded()
        earlier = planned.earlier if planned else {}
        return judge_sweep(measured, self._fleet.hosts, earlier, limit=limit)

    @property
    def sweep_limits(self) -> Thresholds:
        """The numbers that judge the sweep, for its reports and pictures too."""
        return Thresholds(self._fleet_numbers)

    @cached_property
    def burn(self) -> Mapping[str, Burn]:
        """Every node's burn-in compared with its peers', once; empty if there was none."""
        from preflight.burn.comparison import judge_burn  # as above

        measured = self.measured
        units = measured.planned.units if measured.planned else {}
        return judge_burn(measured.burned, self._fleet.hosts, measured.facts, units)


def _fleet_overrides(hosts: Sequence[Host]) -> dict[str, Override]:
    """The numbers that the site sets for all nodes alike: they judge the sweep and the fleet."""
    overrides = {name: limit for host in hosts for name, limit in host.expected.limits.items()}
    return {
        name: limit
        for name, limit in overrides.items()
        if name.startswith(SWEEP_PREFIXES)
        or all(host.expected.limits.get(name) == limit for host in hosts)
    }


def _gating(registry: Registry, stage: Stage) -> list[Check]:
    """Return the checks whose gates decide which nodes take part in a stage.

    Checks of the whole fleet do not count: they only leave a blocked node out of their view.
    """
    return [r.check for r in registry if r.check.stage == stage and r.subject != "fleet"]


def stages_needed(registry: Registry, check_ids: Iterable[str]) -> set[Stage]:
    """The stages that these checks and their requirements need; `reach` is always one of them."""
    needed: set[Stage] = {"reach"}
    todo = list(check_ids)
    visited: set[str] = set()
    while todo:
        check_id = todo.pop()
        if check_id not in visited:
            visited.add(check_id)
            stage = registry[check_id].check.stage
            todo += registry[check_id].check.requires
            if stage not in needed:
                needed.add(stage)
                # The gates of all checks of a stage decide which nodes take part in it.
                todo += [gate for check in _gating(registry, stage) for gate in check.requires]
    return needed


_WAIVABLE = (Outcome.FAIL, Outcome.FLAKY, Outcome.UNKNOWN, Outcome.WARN)


def switched_off(check: str, hosts: Sequence[Host]) -> dict[str, str]:
    """The nodes for which a check is switched off, and why it is not run there."""
    return {
        host.name: f"switched off for {host.name} in {host.off[check]}"
        for host in hosts
        if check in host.off
    }


def with_site_numbers(verdict: Verdict, used: Mapping[str, Override]) -> Verdict:
    """Append the site's numbers that decided in place of shipped ones."""
    if not used or verdict.outcome in (Outcome.NOT_RUN, Outcome.BROKEN):
        return verdict
    listing = "; ".join(describe_override(name, limit) for name, limit in sorted(used.items()))
    numbers = {name: {"value": limit.value, "by": limit.where} for name, limit in used.items()}
    return replace(
        verdict,
        sentence=f"{verdict.sentence} ({listing})",
        evidence={**verdict.evidence, "numbers": numbers},
    )


def is_corruption(check: str, verdict: Verdict) -> bool:
    """Whether the verdict reports corrupted data, which no waiver may accept."""
    wrong = verdict.evidence.get("state") == "corrupt" or verdict.evidence.get("corrupt") is True
    return check in UNWAIVABLE or wrong


def waive(
    check: str, names: Names, verdict: Verdict, waivers: Sequence[Waiver], fleet: Collection[str]
) -> Verdict:
    """Turn a failure into a waived one if the waivers cover all nodes that it counts against.

    Of several culprits those without a waiver stay. Corrupted data are never waived. `waivers`:
    those that have not expired.
    """
    if verdict.outcome not in _WAIVABLE:
        return verdict
    of_check = [waiver for waiver in waivers if waiver.check == check]
    at_fault = _at_fault(names, verdict, fleet)
    covering = [waiver for waiver in of_check if not at_fault.isdisjoint(waiver.nodes)]
    if not covering:
        return verdict
    nodes = {name for waiver in covering for name in waiver.nodes}
    if is_corruption(check, verdict):
        note = "it is waived, but a waiver never hides corrupted data"
        return replace(verdict, sentence=f"{verdict.sentence}; {note}")
    until = "; ".join(f"until {waiver.until}: {waiver.reason}" for waiver in covering)
    if at_fault <= nodes:
        return replace(
            verdict,
            outcome=Outcome.WAIVED,
            sentence=f"{verdict.sentence} (waived {until})",
            evidence={**verdict.evidence, "waived": str(verdict.outcome)},
            cause="",
        )
    remaining = tuple(name for name in verdict.culprits if name not in nodes)
    if len(remaining) == len(verdict.culprits) or not remaining:
        return verdict
    waived = ", ".join(name for name in verdict.culprits if name in nodes)
    sentence = f"{verdict.sentence} (for {waived} waived {until})"
    return replace(verdict, sentence=sentence, culprits=remaining)


def _at_fault(names: Names, verdict: Verdict, fleet: Collection[str]) -> set[str]:
    """The nodes that a verdict makes not ready, as `readiness` counts them."""
    nodes = {*verdict.culprits, *verdict.suspects}
    if nodes:
        return nodes
    if verdict.blame in fleet:
        return {verdict.blame}
    return set(names or fleet)
