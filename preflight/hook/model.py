"""What passes between the parts of the hook: a false drain costs a node, so each part is typed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from preflight.verdict import Outcome

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Moment(Struct, frozen=True):
    """As `now` returns it; the default is of a boot that is unknown."""

    boot_id: str = ""
    up_s: float = 0.0

    def age_s(self) -> float | None:
        """Seconds since then; None where that was before a reboot."""
        here = now()
        return here.up_s - self.up_s if here.boot_id == self.boot_id else None

    def least_age_s(self) -> float:
        """The same; where that was before a reboot, seconds since that."""
        age_s = self.age_s()
        return now().up_s if age_s is None else age_s


def now() -> Moment:
    """Return the moment that it is."""
    try:
        boot_id = _BOOT_ID.read_text().strip()
    except OSError:
        boot_id = ""
    return Moment(boot_id, time.clock_gettime(time.CLOCK_BOOTTIME))


Action = Literal["none", "drain", "undrain", "withheld", "observe"]
"""`observe`: it would have drained, and was not told to enforce. `withheld`: the breaker is open,
or somebody else holds the node."""

Occasion = Literal["prolog", "healthcheck"]


class Call(Struct, frozen=True, kw_only=True):
    """Why the hook was started, in the scheduler's words."""

    occasion: Occasion
    job: str = ""
    """Its number; "" where no job is about to start."""
    partition: str = ""
    """The job's; "" where none is known: then the node's own partitions count."""
    fail_closed: bool = False
    """A fault of preflight's own keeps the job from this node."""


class Finding(Struct, frozen=True, kw_only=True):
    """One check that did not pass on this node."""

    check: str
    outcome: Outcome
    """`fail`, `flaky` or `warn`; what could not be judged is `Unjudged`."""
    sentence: str
    advice: str = ""
    drains: bool = False
    """The check is declared drain-worthy, and the outcome condemns this node's own hardware."""
    user: bool = False
    """Left behind or set by a user: processes, application Xids, environment. Never drains."""
    heals: bool = False
    """Its cause may go away by itself; only such a drain of ours may be undone."""
    gpus: tuple[int, ...] = ()
    """Which GPUs, as the host numbers them; () where it is not about some."""

    @property
    def condemns(self) -> bool:
        """Whether the node, or its user's part of it, is unfit by this finding."""
        return self.outcome in (Outcome.FAIL, Outcome.FLAKY)


class Unjudged(Struct, frozen=True, kw_only=True):
    """One check that could not be judged: never a reason to drain."""

    check: str
    why: str
    out_of_time: bool = False
    """The hook's budget was spent; nothing is said about the node by that."""


class Judged(Struct, frozen=True, kw_only=True):
    """What the hook knows of this node now."""

    node: str
    """As the scheduler names it."""
    findings: tuple[Finding, ...] = ()
    unknown: tuple[Unjudged, ...] = ()
    passed: tuple[str, ...] = ()
    """Checks that said `ok`: a drain of ours is undone only where its check is among them."""
    facts_age_s: float | None = None
    """Age of what came from the last periodic run; None where all was read now."""
    trouble: str = ""
    """Our own fault (bad inventory, crash, import error); "" where there was none."""
    seconds: float = 0.0


class NodeState(Struct, frozen=True, kw_only=True):
    """The node as the scheduler sees it."""

    states: frozenset[str]
    """Slurm's base state and flags, upper case: {"IDLE", "DRAIN"}."""
    reason: str = ""
    reason_user: str = ""
    reason_time: float | None = None
    """Seconds since the epoch; None where the scheduler does not tell."""
    partitions: tuple[str, ...] = ()


class Tokens(Struct, frozen=True, kw_only=True):
    """What the breaker answered when it was asked for one more drain."""

    granted: bool
    used: int = 0
    """Nodes that were drained within the window, this one included where it was granted."""
    most: int = 0
    """Nodes that may be."""
    trouble: str = ""
    """Why it could not be asked, and what to do; "" where it answered."""


class Drained(Struct, frozen=True, kw_only=True):
    """The drain that the hook set on this node, as remembered here (state_dir/drained.json)."""

    check: str
    reason: str
    """As it was given to the scheduler, to the letter: whoever edits it takes the node over."""
    time_s: float
    """Seconds since the epoch, for people: a clock that is set wrong must not keep a node out."""
    at: Moment = Moment()
    heals: bool = False


class Decision(Struct, frozen=True, kw_only=True):
    """What is to be done, and what is to be said of it."""

    action: Action
    exit_code: int
    reason: str = ""
    """For the scheduler: ASCII, at most 120 characters; "" where none is to be set."""
    log: str = ""
    """One line for syslog; "" keeps silent."""


class BreakerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many nodes the hook may drain in a window: the greater of a number and a share."""

    directory: Path | None = None
    """Drain tokens are taken in this folder of a file system that all nodes share."""
    slurm: bool = False
    """Count the nodes that carry our reason, by asking the controller, instead."""
    most_nodes: Annotated[int, Meta(ge=0, le=100_000)] = 3
    most_share: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """Of the nodes of the partition."""
    window_s: Annotated[float, Meta(gt=0, le=30 * 86_400)] = 3600


class HookConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator chose, in hook.toml; never a secret. The defaults only observe."""

    inventory: Path | None = None
    """What this node is promised to have; None: only what needs no promise is judged."""
    enforce: bool = False
    """Drain, instead of only logging what would have been done."""
    budget_s: Annotated[float, Meta(ge=2, le=60)] = 8
    """For the whole prolog, in seconds."""
    healthcheck_budget_s: Annotated[float, Meta(ge=2, le=600)] = 30
    """The same of a health check; Slurm ends its own after 60 s."""
    facts_max_age_s: Annotated[float, Meta(ge=0, le=7 * 86_400)] = 3600
    """How old facts of the last periodic run may be for a prolog to use them."""
    gpus_by_gres: bool = False
    """A job to which the scheduler names no GPUs has none, instead of the whole node."""
    state_dir: Path = Path("/var/lib/preflight")
    log: Literal["syslog", "stderr"] = "syslog"
    breaker: BreakerConfig | None = None
    """None: enforcement is refused, and the hook only observes."""
    skip: tuple[str, ...] = ()
    """Checks that the hook does not ask."""
    undrain_after_s: Annotated[float, Meta(ge=0, le=30 * 86_400)] = 600
    """A drain of ours that may heal stands at least so long, in seconds."""
    slurm_bin: Path | None = None
    """Folder of scontrol and sinfo; None: looked for in the usual ones."""
    sysfs: Path = Path("/sys")
    kernel_log: Path = Path("/dev/kmsg")
    """Where a container has these two of its host."""
