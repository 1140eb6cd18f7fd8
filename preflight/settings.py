"""What the operator chose for a run, and the time that its stages have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from preflight.carried import Carried
from preflight.check import Stage, Tier
from preflight.fabric.soak import DEEP_RATE
from preflight.transport.fanout import SETUP_AT_MOST
from preflight.verdict import not_run

if TYPE_CHECKING:
    from preflight.verdict import Verdict

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
