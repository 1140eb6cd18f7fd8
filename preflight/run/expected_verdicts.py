"""What was chosen for a run, which verdicts are expected, and who takes part in a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.check import Stage, Tier
from preflight.fabric.plan import DEEP_RATE
from preflight.facts.gpu_users import BUSY_WORD, busy_with
from preflight.run.site_sections import Carried
from preflight.transport.ways import SETUP_AT_MOST
from preflight.verdict import not_run

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from preflight.core.registry import Registry
    from preflight.fabric.schedule import Pairing
    from preflight.fleet.model import Fleet, Host
    from preflight.run.judgement import Judgement, Key
    from preflight.verdict import Verdict


def owed(
    fleet: Fleet,
    registry: Registry,
    tier: Tier,
    pairs: Sequence[Pairing],
    wanted: Container[str] | None = None,
) -> list[Key]:
    """Name every verdict that is owed, in the order in which it will be reached.

    `wanted`: of these checks alone; None or empty: of all that are within the tier.
    """
    keys: list[Key] = []
    for registered in registry:
        check = registered.check
        if not check.within(tier) or (wanted and check.id not in wanted):
            continue
        if registered.subject == "pair":
            keys += [(check.id, pair) for pair in pairs]
        elif registered.subject == "fleet":
            keys.append((check.id, ()))
        else:
            keys += [(check.id, (host.name,)) for host in fleet.hosts]
    return keys


class Selection:
    """The verdicts that somebody selected, and what follows from them."""

    def __init__(
        self, fleet: Fleet, registry: Registry, judgement: Judgement, keys: Sequence[Key]
    ) -> None:
        self.keys = keys
        self._hosts = [host.name for host in fleet.hosts]
        self._registry = registry
        on = (key for key in keys if not judgement.off(*key))
        self._on: dict[str, set[str]] = {}
        for check_id, names in on:
            self._on.setdefault(check_id, set()).update(names or self._hosts)

    @property
    def checks(self) -> Iterable[str]:
        """The checks that are not switched off everywhere: only these are measured."""
        return self._on

    @property
    def of_pairs(self) -> tuple[str, ...]:
        """The checks of pairs among all that were selected."""
        wanted = {check_id for check_id, _ in self.keys}
        own = (one for one in self._registry if one.subject == "pair")
        return tuple(one.check.id for one in own if one.check.id in wanted)

    @property
    def inside(self) -> bool:
        """Whether a check of single nodes wants the sweep."""
        asked = (self._registry[check_id] for check_id in self._on)
        return any(one.check.stage == "fabric" and one.subject == "node" for one in asked)

    def watched(self) -> list[Key]:
        """The selected verdicts after those that they wait for: a gate that is shut is a finding.

        Were it not judged itself, a node that is down would leave nothing but `not_run` behind.
        """
        ways_in = tuple(r.check.id for r in self._registry if r.check.stage == "reach")
        gates: dict[str, set[str]] = {}

        def spread(check_id: str, names: set[str]) -> None:
            check = self._registry[check_id].check
            for gate in check.requires if check.stage == "reach" else (*ways_in, *check.requires):
                new = names - gates.setdefault(gate, set())
                if new:
                    gates[gate] |= new
                    spread(gate, new)

        for check_id, nodes in self._on.items():
            spread(check_id, nodes)
        before = [
            (registered.check.id, (name,))
            for registered in self._registry
            for name in self._hosts
            if name in gates.get(registered.check.id, ())
        ]
        return [*dict.fromkeys([*before, *self.keys])]


class Partakers:
    """Asks the judges; `reached` are the names of the nodes to which there is a connection."""

    def __init__(
        self,
        hosts: Sequence[Host],
        judgement: Judgement,
        reached: Container[str],
        *,
        even_if_busy: bool,
    ) -> None:
        self._hosts = hosts
        self._judgement = judgement
        self._reached = reached
        self._even_if_busy = even_if_busy

    def able(self, stage: Stage) -> list[Host]:
        """Ask the judges of a stage's prerequisites who can take part in it."""
        return [
            host
            for host in self._hosts
            if host.name in self._reached and not self._judgement.may_take_part(host.name, stage)
        ]

    def left_out(self, stage: Stage, taking_part: Sequence[Host]) -> dict[str, str]:
        """Who is not among them, and why."""
        able = {host.name for host in taking_part}
        return {
            host.name: self._judgement.may_take_part(host.name, stage)
            or self.hindered(host.name)
            or "no connection"
            for host in self._hosts
            if host.name not in able
        }

    def hindered(self, name: str) -> str:
        """Say why a node that may be loaded must not or cannot be, if so."""
        reach = self._judgement.measured.reach.get(name)
        if reach is not None and reach.shortfall is not None:
            return f"reach.answer of {name}: {reach.shortfall.sentence}"
        return self._busy(name)

    def _busy(self, name: str) -> str:
        """Say whose work a measurement under load would disturb on a node, if anyone's."""
        facts = self._judgement.measured.facts.get(name)
        if self._even_if_busy or facts is None:
            return ""
        work = busy_with(facts)
        return f"{BUSY_WORD}{work} works on its GPUs (--preflight-even-if-busy)" if work else ""


FailFast = Literal["stage", "first", "never"]

BUDGET_S: dict[Tier, float] = {"prolog": 8, "quick": 60, "standard": 300, "deep": 3600}
"""Wall time of a run by tier, unless --preflight-budget says otherwise."""

PORTS_S = 30.0
"""For the port stage; a blocked port costs each node one connect deadline of 3 s."""

_LEAST_S: dict[Stage, float] = {"net": 8.0}
"""No stage is begun with less. `net`: a connection and its answer may take 3 s each; cut off in the
middle they would look like a firewall."""

_LEAST_ELSE_S = 1.0


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
    kernel_log_since_s: float | None = None
    """How far back the kernel log counts, in seconds; None: since boot."""
    catch_rate: float | None = None
    """Events per second of load that the sweep's soak is to catch; None leaves it to the tier."""

    keep_nccl_logs: bool = False
    """What NCCL logs in the sweep is kept in measured.json."""

    @property
    def soak_rate(self) -> float | None:
        """What the soak is to catch; None for the short one."""
        deep = DEEP_RATE if self.tier == "deep" else None
        return deep if self.catch_rate is None else self.catch_rate

    @property
    def wall_s(self) -> float:
        """The run's time budget in seconds."""
        return self.budget_s if self.budget_s is not None else BUDGET_S[self.tier]


def least_s(stage: Stage) -> float:
    """The least time in seconds for which a stage is worth its beginning."""
    return _LEAST_S.get(stage, _LEAST_ELSE_S)


def out_of_time(stage: Stage, wall_s: float) -> Verdict:
    """No node's fault, so nobody is condemned for it."""
    return not_run(
        f"of the budget of {wall_s:g} s less than {least_s(stage):g} s was left for the {stage} "
        "stage; give more: --preflight-budget=SECONDS",
        stopped=True,
    )
