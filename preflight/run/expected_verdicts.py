"""A run's settings, the verdicts selected, and the nodes that are eligible for a stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.check import Stage, Tier
from preflight.fabric.sweep_plan import DEEP_RATE
from preflight.facts.gpu_users import BUSY_PREFIX, busy_process
from preflight.run.site_sections import LoadedSection
from preflight.transport.ways import SETUP_AT_MOST
from preflight.verdict import Verdict, not_run

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from preflight.core.registry import Registry
    from preflight.fleet.model import Fleet, Host
    from preflight.run.judgement import Judgement, Key


class Selection:
    """The verdicts that the operator selected, and what the run must measure for them."""

    def __init__(
        self, fleet: Fleet, registry: Registry, judgement: Judgement, keys: Sequence[Key]
    ) -> None:
        self.keys = keys
        self._hosts = [host.name for host in fleet.hosts]
        self._registry = registry
        self.nodes_by_check: dict[str, set[str]] = {}
        """The checks that are on for some node: the run measures only for these."""
        for check_id, names in keys:
            if not judgement.why_off(check_id, names):
                self.nodes_by_check.setdefault(check_id, set()).update(names or self._hosts)

    @property
    def pair_checks(self) -> tuple[str, ...]:
        """The selected checks that judge pairs."""
        check_ids = {check_id for check_id, _ in self.keys}
        pair_entries = (entry for entry in self._registry if entry.subject == "pair")
        return tuple(entry.check.id for entry in pair_entries if entry.check.id in check_ids)

    @property
    def measures_nodes(self) -> bool:
        """Whether a selected check of single nodes needs the sweep."""
        entries = (self._registry[check_id] for check_id in self.nodes_by_check)
        return any(entry.check.stage == "fabric" and entry.subject == "node" for entry in entries)

    def with_gates(self) -> list[Key]:
        """The selected verdicts, each after the gates that it requires.

        A failed gate is a finding: without it, a node that is down would show only `not_run`.
        """
        reach_checks = tuple(r.check.id for r in self._registry if r.check.stage == "reach")
        gates: dict[str, set[str]] = {}

        def add_gates(check_id: str, names: set[str]) -> None:
            check = self._registry[check_id].check
            ways_in = () if check.stage == "reach" else reach_checks
            for gate in (*ways_in, *check.requires):
                new = names - gates.setdefault(gate, set())
                if new:
                    gates[gate] |= new
                    add_gates(gate, new)

        for check_id, nodes in self.nodes_by_check.items():
            add_gates(check_id, nodes)
        gate_keys = [
            (registered.check.id, (name,))
            for registered in self._registry
            for name in self._hosts
            if name in gates.get(registered.check.id, ())
        ]
        return [*dict.fromkeys([*gate_keys, *self.keys])]


@dataclass(frozen=True)
class Eligibility:
    """Decides which nodes take part in a stage; `reached`: names of nodes with a connection."""

    _hosts: Sequence[Host]
    _judgement: Judgement
    _reached: Container[str]
    _even_if_busy: bool

    def eligible(self, stage: Stage) -> list[Host]:
        """The reached nodes on which no prerequisite of the stage has failed."""
        return [
            host
            for host in self._hosts
            if host.name in self._reached and not self._judgement.why_excluded(host.name, stage)
        ]

    def left_out(self, stage: Stage, taking_part: Sequence[Host]) -> dict[str, str]:
        """By name, the nodes that do not take part, and why."""
        names = {host.name for host in taking_part}
        return {
            host.name: self._judgement.why_excluded(host.name, stage)
            or self.why_not_loaded(host.name)
            or "no connection"
            for host in self._hosts
            if host.name not in names
        }

    def loadable(self, stage: Stage) -> list[Host]:
        """The eligible nodes that can and may be put under load."""
        return [host for host in self.eligible(stage) if not self.why_not_loaded(host.name)]

    def why_not_loaded(self, name: str) -> str:
        """Why an eligible node cannot be put under load, or the work there that would suffer."""
        measured = self._judgement.measured
        reach, facts = measured.reach.get(name), measured.facts.get(name)
        if reach is not None and reach.shortfall is not None:
            return f"reach.answer of {name}: {reach.shortfall.sentence}"
        if self._even_if_busy or facts is None:
            return ""
        work = busy_process(facts)
        return f"{BUSY_PREFIX}{work} works on its GPUs (--preflight-even-if-busy)" if work else ""


FailFast = Literal["stage", "first", "never"]

BUDGET_S: dict[Tier, float] = {"prolog": 8, "quick": 60, "standard": 300, "deep": 3600}
"""Wall time of a run by tier, unless --preflight-budget says otherwise."""

PORTS_S = 30.0
"""Time for the port stage; a blocked port costs each node one connect deadline of 3 s."""

_LEAST_S, _LEAST_PORTS_S = 1.0, 8.0
"""A stage is not begun with less. `net`: a connection and its answer may take 3 s each; if the
budget ends in the middle, that looks like a firewall."""


class Settings(Struct, frozen=True, kw_only=True):
    """The operator's settings for this run."""

    tier: Tier = "quick"
    fail_fast: FailFast = "stage"
    budget_s: float | None = None
    even_if_busy: bool = False
    """Load nodes even if a job or user is using their GPUs."""
    sections: tuple[LoadedSection, ...] = ()
    """The site's sections of the probe."""
    at_most: int = SETUP_AT_MOST
    """Connections set up at once."""
    kernel_log_since_s: float | None = None
    """How far back the kernel log counts, in seconds; None: since boot."""
    catch_rate: float | None = None
    """Events per second of load that the sweep's soak must catch; None: the tier decides."""

    keep_nccl_logs: bool = False
    """Keep NCCL's log lines of the sweep in measured.json."""

    @property
    def soak_rate(self) -> float | None:
        """Events per second of load that the soak must catch; None for the short soak."""
        deep = DEEP_RATE if self.tier == "deep" else None
        return deep if self.catch_rate is None else self.catch_rate

    @property
    def wall_s(self) -> float:
        """The run's time budget in seconds."""
        return self.budget_s if self.budget_s is not None else BUDGET_S[self.tier]


def least_s(stage: Stage) -> float:
    """The least time left, in seconds, with which a stage is begun."""
    return _LEAST_PORTS_S if stage == "net" else _LEAST_S


def out_of_time(stage: Stage, wall_s: float) -> Verdict:
    """The verdict for a stage that the budget has no time for: it counts against no node."""
    return not_run(
        f"of the budget of {wall_s:g} s less than {least_s(stage):g} s was left for the {stage} "
        "stage; give more: --preflight-budget=SECONDS",
        stopped=True,
    )
