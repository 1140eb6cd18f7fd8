"""The typed values that the parts of the hook pass to each other, hook.toml's among them."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from preflight.core.files import parse_toml, read_regular, refuse_untrusted
from preflight.errors import UsageError
from preflight.verdict import Outcome

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_CLOCK_OFFSETS: Final = Path("/proc/self/timens_offsets")
"""How far this process's time namespace moves each clock: `boottime SECONDS NANOSECONDS`."""


class Moment(Struct, frozen=True):
    """A moment since boot, as `now` returns it; the default belongs to an unknown boot."""

    boot_id: str = ""
    up_s: float = 0.0

    def age_s(self) -> float | None:
        """Seconds since this moment; None if the machine was rebooted since."""
        moment = now()
        return moment.up_s - self.up_s if moment.boot_id == self.boot_id else None


def now() -> Moment:
    """Return the current moment, the same in every time namespace."""
    boot_id, offset_s = "", 0.0
    with suppress(OSError, ValueError):
        boot_id = _BOOT_ID.read_text().strip()
        words = _CLOCK_OFFSETS.read_text().split()
        offset_s = float(words[words.index("boottime") + 1])
    return Moment(boot_id, time.clock_gettime(time.CLOCK_BOOTTIME) - offset_s)


Action = Literal["none", "drain", "undrain", "withheld", "observe"]
"""`observe`: the hook would have acted, but `enforce` is not set. `withheld`: the breaker is open,
or an operator or another tool holds the node."""

Occasion = Literal["prolog", "healthcheck"]


class Call(Struct, frozen=True, kw_only=True):
    """Why the scheduler started the hook."""

    occasion: Occasion
    job: str = ""
    """The job's number; "" where no job is about to start."""
    partition: str = ""
    """The job's partition; "" where unknown: then the node's partitions count."""
    fail_closed: bool = False
    """Whether an error of preflight itself keeps the job from this node."""


class Finding(Struct, frozen=True, kw_only=True):
    """One check that did not pass on this node."""

    check: str
    outcome: Outcome
    """`fail`, `flaky` or `warn`; an unknown result is an `Unjudged`."""
    sentence: str
    advice: str = ""
    drains: bool = False
    """The check may drain, and the outcome blames this node's own hardware."""
    user: bool = False
    """Left behind or set by a user: processes, application Xids, environment. Never drains."""
    heals: bool = False
    """The cause may go away by itself; the hook undoes only such a drain."""
    gpus: tuple[int, ...] = ()
    """Which GPUs, as the host numbers them; () where the finding is not about GPUs."""

    @property
    def makes_not_ready(self) -> bool:
        """Whether this finding makes the node, or its user's part of it, not ready."""
        return self.outcome in (Outcome.FAIL, Outcome.FLAKY)


class Unjudged(Struct, frozen=True, kw_only=True):
    """One check whose result is unknown: never a reason to drain."""

    check: str
    why: str
    out_of_time: bool = False
    """The hook's budget ran out, which shows nothing about the node."""


class Assessment(Struct, frozen=True, kw_only=True):
    """The results of this node's checks."""

    node: str
    """The node's name in the scheduler."""
    findings: tuple[Finding, ...] = ()
    unknown: tuple[Unjudged, ...] = ()
    passed: tuple[str, ...] = ()
    """Checks that are `ok`: the hook undoes a drain only where its check is among them."""
    facts_age_s: float | None = None
    """Age of the facts taken from the last periodic run; None where all were read now."""
    trouble: str = ""
    """An error of preflight itself (bad inventory, crash, import error); "" without one."""
    seconds: float = 0.0


class NodeState(Struct, frozen=True, kw_only=True):
    """The node as the scheduler sees it."""

    states: frozenset[str]
    """Slurm's base state and flags, upper case: {"IDLE", "DRAIN"}."""
    reason: str = ""
    partitions: tuple[str, ...] = ()


class Tokens(Struct, frozen=True, kw_only=True):
    """The breaker's answer to a request for one more drain."""

    granted: bool
    used: int = 0
    """Nodes that were drained within the window, this one included where it was granted."""
    most: int = 0
    """Nodes that may be drained within the window."""
    trouble: str = ""
    """Why the breaker did not answer, and what to do; "" where it did."""


class DrainRecord(Struct, frozen=True, kw_only=True):
    """The drain that the hook set on this node, recorded in state_dir/drained.json."""

    check: str
    reason: str
    """Exactly as given to the scheduler: an operator who edits it takes the node over."""
    time_s: float
    """Seconds since the epoch, only for display: a wrong clock must not keep a node drained."""
    at: Moment = Moment()
    heals: bool = False


class Decision(Struct, frozen=True):
    """What to do with the node, and what to log."""

    action: Action
    exit_code: int = 0
    reason: str = ""
    """For the scheduler: ASCII, at most 120 characters; "" to set none."""
    log: str = ""
    """One line for syslog; "" logs nothing."""


class BreakerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many nodes the hook may drain in a window: the greater of a number and a share."""

    directory: Path | None = None
    """Folder for drain tokens, on a file system that all nodes share."""
    slurm: bool = False
    """Instead, ask the controller how many nodes have a reason set by preflight."""
    most_nodes: Annotated[int, Meta(ge=0, le=100_000)] = 3
    most_share: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """Of the nodes of the partition."""
    window_s: Annotated[float, Meta(gt=0, le=30 * 86_400)] = 3600


SHORTEST_S: Final = 2
"""The least budget, in seconds, in which a hook can check a node."""


class HookConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operator's choices in hook.toml; never a secret. The defaults only observe."""

    inventory: Path | None = None
    """What is expected of this node; None: only checks that need no inventory run."""
    enforce: bool = False
    """Drain, instead of only logging what the hook would do."""
    budget_s: Annotated[float, Meta(ge=SHORTEST_S, le=60)] = 8
    """For the whole prolog, in seconds."""
    healthcheck_budget_s: Annotated[float, Meta(ge=SHORTEST_S, le=600)] = 30
    """For the whole health check; Slurm ends its own after 60 s."""
    facts_max_age_s: Annotated[float, Meta(ge=0, le=7 * 86_400)] = 3600
    """How old facts of the last periodic run may be for a prolog to use them."""
    gpus_by_gres: bool = False
    """A job without SLURM_JOB_GPUS has no GPUs, instead of all."""
    state_dir: Path = Path("/var/lib/preflight")
    log: Literal["syslog", "stderr"] = "syslog"
    breaker: BreakerConfig | None = None
    """None: the hook only observes, even with `enforce`."""
    skip: tuple[str, ...] = ()
    """Checks that the hook does not run."""
    undrain_after_s: Annotated[float, Meta(ge=0, le=30 * 86_400)] = 600
    """Minimum duration, in seconds, of a drain that preflight may undo."""
    slurm_bin: Path | None = None
    """Folder of scontrol and sinfo; None: the usual folders are searched."""
    sysfs: Path = Path("/sys")
    kernel_log: Path = Path("/dev/kmsg")
    """In a container: where the host's /sys and /dev/kmsg are mounted."""


DEFAULT: Final = Path("/etc/preflight/hook.toml")
_LARGEST: Final = 64 << 10

SPARE_S: Final = 1.0
"""Time that a hook needs beyond its budget, to start and end, within its caller's limit."""


def load_config(path: Path | None = None) -> HookConfig:
    """Read the operator's choices; UsageError that names the file and what to change.

    Without a path, reads the default file; if that does not exist, returns the defaults, which only
    observe.
    """
    if path is None and not os.path.lexists(DEFAULT):
        return HookConfig()
    return parse_config(read_trusted(path or DEFAULT), path or DEFAULT)


def parse_config(content: bytes, path: Path) -> HookConfig:
    """Parse the text of a hook.toml; UsageError for invalid TOML, values or unknown keys."""
    try:
        config = msgspec.convert(parse_toml(content.decode()), HookConfig, dec_hook=_path)
    except (ValueError, RecursionError) as error:
        problem = str(error).encode("ascii", "replace").decode()[:200]
        raise UsageError(f"{path}: {problem}; see docs/reference/prolog.md for its keys") from error
    names = ("inventory", "state_dir", "sysfs", "kernel_log", "slurm_bin")
    places: dict[str, Path | None] = {name: getattr(config, name) for name in names}
    places["breaker.directory"] = config.breaker.directory if config.breaker else None
    for name, place in places.items():
        if place is not None and not (place.is_absolute() and str(place).isprintable()):
            raise UsageError(f"{path}: {name} = {str(place)!a}: write a path that begins with /")
    if config.inventory is not None and config.inventory.suffix.lower() != ".toml":
        raise UsageError(f"{path}: inventory = {str(config.inventory)!a}: give a .toml file")
    return config


def refuse_longer(config: HookConfig, occasion: Occasion, limit_s: float | None) -> None:
    """Raise UsageError for a budget longer than the caller's time limit.

    A hook that is ended early would judge nothing on exactly the nodes that take that long.
    """
    key = "budget_s" if occasion == "prolog" else "healthcheck_budget_s"
    budget_s: float = getattr(config, key)
    if limit_s is not None and budget_s > limit_s - SPARE_S:
        advice = f"set at most {limit_s - SPARE_S:g} in hook.toml, or raise LIMIT_S in that script"
        if limit_s - SPARE_S < SHORTEST_S:
            advice = f"raise LIMIT_S in that script to at least {budget_s + SPARE_S:g}"
        raise UsageError(
            f"{key} = {budget_s:g} s is too long: the script that starts preflight ends it after "
            f"{limit_s:g} s; {advice}"
        )


def _path(kind: type, value: object) -> Path:
    """Convert a string, and nothing else, to a path."""
    if kind is not Path or not isinstance(value, str):
        raise ValueError(f"expected a path, got {value!a:.40}")
    return Path(value)


def read_trusted(path: Path, largest: int = _LARGEST) -> bytes:
    """Read a file that decides drains; UsageError where a user other than root may write it."""
    refuse_untrusted(path)
    try:
        return read_regular(path, largest)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; give a readable file") from error
