"""Whatever happens to a fleet, in whatever order, the hook's promises about drains hold."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from preflight.hook.decision import DecisionInput, decide, is_own_reason
from preflight.hook.hook_values import (
    Assessment,
    BreakerConfig,
    Call,
    Decision,
    DrainRecord,
    Finding,
    HookConfig,
    NodeState,
    Tokens,
    Unjudged,
)
from preflight.verdict import Outcome
from tests.cases import draws

NODES = ("n1", "n2", "n3", "n4", "n5", "n6")
MOST, WINDOW_S = 2, 1000.0
PEOPLE = ("RMA 4711", "Prolog error", "pf: looked at it", "NHC: ib down")

_findings = st.builds(
    Finding,
    check=st.sampled_from(("gpu.ecc", "gpu.throttle", "proc.stale")),
    outcome=st.sampled_from((Outcome.FAIL, Outcome.FLAKY, Outcome.WARN)),
    sentence=st.sampled_from(("2 of 8", "x = 'y', z", "")),
    drains=st.booleans(),
    user=st.booleans(),
    heals=st.booleans(),
)
_unjudged = st.builds(
    Unjudged, check=st.just("gpu.count"), why=st.just("time"), out_of_time=st.booleans()
)
_judged = st.builds(
    Assessment,
    node=st.just(""),
    findings=st.lists(_findings, max_size=3).map(tuple),
    unknown=st.lists(_unjudged, max_size=2).map(tuple),
    passed=st.sampled_from(((), ("gpu.throttle",), ("gpu.ecc", "gpu.throttle"))),
    trouble=st.sampled_from(("", "", "", "disk full")),
)
_configs = st.builds(
    HookConfig,
    enforce=st.sampled_from((True, True, False)),
    breaker=st.sampled_from((BreakerConfig(slurm=True), BreakerConfig(slurm=True), None)),
    undrain_after_s=st.sampled_from((0.0, 600.0)),
)


@dataclass
class Machine:
    """One node as Slurm has it, and what the hook remembers there."""

    states: set[str] = field(default_factory=lambda: {"IDLE"})
    reason: str = ""
    mine: DrainRecord | None = None

    @property
    def ours(self) -> bool:
        """Whether the hook took it out."""
        return "DRAIN" in self.states and is_own_reason(self.reason)


class Fleet(RuleBasedStateMachine):
    """Nodes with faults, people, time and a breaker; each step of the hook is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1e6
        self.nodes = {name: Machine() for name in NODES}
        self.tokens: deque[tuple[float, str]] = deque()
        self.kept_away: list[tuple[float, str]] = []
        """Every exit that is not 0 on a node that was not out already."""

    @rule(
        name=st.sampled_from(NODES),
        found=_judged,
        config=_configs,
        call=st.sampled_from(
            (
                Call(occasion="healthcheck"),
                Call(occasion="prolog", job="7"),
                Call(occasion="prolog", job="7", fail_closed=True),
            )
        ),
        answers=st.booleans(),
    )
    def the_hook_runs(
        self, name: str, found: Assessment, config: HookConfig, call: Call, *, answers: bool
    ) -> None:
        """With any findings, under any configuration, whether or not slurmctld answers."""
        machine, found = self.nodes[name], replace(found, node=name)
        before = Machine(set(machine.states), machine.reason, machine.mine)
        mine = machine.mine
        stood_s = self.now_s - mine.time_s if mine is not None else 0.0
        known = DecisionInput(call=call, assessment=found, record=mine, record_age_s=stood_s)
        asked, step = [], decide(known, config)
        while not isinstance(step, Decision):
            assert step not in asked, "asked twice"
            asked.append(step)
            known = self._told(known, step, answers=answers)
            step = decide(known, config)
        self._carry_out(machine, step, found)
        self._look(name, before, known, config, step)

    def _told(self, known: DecisionInput, asked: str, *, answers: bool) -> DecisionInput:
        name = known.assessment.node
        machine = self.nodes[name]
        if asked == "state":
            seen = NodeState(states=frozenset(machine.states), reason=machine.reason)
            unread = replace(known, state_trouble="no answer")
            return replace(known, state=seen) if answers else unread
        holders = {node for _, node in self.tokens}
        if name not in holders and len(holders) < MOST:
            self.tokens.append((self.now_s, name))
        held = {node for _, node in self.tokens}
        return replace(known, tokens=Tokens(granted=name in held, used=len(held), most=MOST))

    def _carry_out(self, machine: Machine, step: Decision, found: Assessment) -> None:
        if step.action == "drain":
            machine.states.add("DRAIN")
            machine.reason = step.reason
            assert is_own_reason(step.reason)
            check = step.reason.removeprefix("pf:").partition(" ")[0]
            heals = check == "hook.trouble" or all(
                each.heals
                for each in found.findings
                if each.drains and not each.user and each.outcome is Outcome.FAIL
            )
            machine.mine = DrainRecord(
                check=check, reason=step.reason, time_s=self.now_s, heals=heals
            )
        elif step.action == "undrain":
            machine.states.discard("DRAIN")
            machine.reason, machine.mine = "", None

    def _look(
        self, name: str, before: Machine, known: DecisionInput, config: HookConfig, step: Decision
    ) -> None:
        out = "DRAIN" in before.states
        observing = not config.enforce or config.breaker is None
        foreign = before.reason != "" and not is_own_reason(before.reason)
        hardware = [
            each
            for each in known.assessment.findings
            if each.drains and not each.user and each.outcome is Outcome.FAIL
        ]
        closed = known.call.fail_closed
        silent = (
            known.assessment.unknown
            and not known.assessment.findings
            and not known.assessment.passed
        )
        if observing:
            assert step.action in ("none", "observe")
            assert step.exit_code == 0
        if step.action in ("drain", "undrain"):
            assert not foreign, "a reason of another tool was changed"
            assert not before.states & {"DOWN", "MAINT", "FAIL"}
        if step.action == "drain":
            assert len(step.reason) <= 120
            assert step.reason.startswith("pf:")
            assert hardware or ((known.assessment.trouble or silent) and closed)
        if step.action in ("withheld", "observe", "undrain"):
            assert step.exit_code == 0
        if step.exit_code:
            assert step.action == "drain" or out or closed
            if not out:
                self.kept_away.append((self.now_s, name))
        if step.action == "undrain":
            assert known.call.occasion == "healthcheck"
            assert before.mine is not None
            assert before.mine.heals
            assert before.reason == before.mine.reason
            assert not hardware
        if (
            not known.assessment.trouble
            and not known.assessment.findings
            and not known.assessment.unknown
        ):
            assert step.log == "" or step.action == "undrain" or "would resume" in step.log

    @rule(name=st.sampled_from(NODES), reason=st.sampled_from(PEOPLE), add=st.booleans())
    def a_person_drains(self, name: str, reason: str, *, add: bool) -> None:
        """Or writes something behind a reason that is there."""
        machine = self.nodes[name]
        machine.states.add("DRAIN")
        machine.reason = f"{machine.reason} {reason}".strip() if add else reason

    @rule(name=st.sampled_from(NODES))
    def a_person_resumes(self, name: str) -> None:
        """Slurm forgets the reason with it; the hook's memory stays as it is."""
        self.nodes[name].states.discard("DRAIN")
        self.nodes[name].reason = ""

    @rule(name=st.sampled_from(NODES), word=st.sampled_from(("DOWN", "MAINT", "FAIL")))
    def something_else_holds_it(self, name: str, word: str) -> None:
        """It goes down or into maintenance, and comes back."""
        self.nodes[name].states ^= {word}

    @rule(seconds=st.sampled_from((1.0, 400.0, 1200.0)))
    def time_passes(self, seconds: float) -> None:
        """Old tokens stop counting."""
        self.now_s += seconds
        while self.tokens and self.now_s - self.tokens[0][0] >= WINDOW_S:
            self.tokens.popleft()

    @invariant()
    def never_more_than_so_many_in_a_window(self) -> None:
        """Drains, and prologs that failed, on different nodes."""
        young = {name for when, name in self.kept_away if self.now_s - when < WINDOW_S}
        assert len(young) <= MOST


TestFleet = cast("Any", Fleet).TestCase
TestFleet.settings = draws(60, stateful_step_count=40)
