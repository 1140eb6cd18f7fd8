"""Judges the node we run on: its promise, its facts, the job's GPUs and the time there is."""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from preflight.core.files import read_regular, refuse_others
from preflight.core.remote_command import OUTPUT_LIMIT, LocalConnection, PipeRemote, ReachError
from preflight.errors import PreflightError, UsageError, WireError
from preflight.facts.model import DRIVER_S, decode_facts
from preflight.fleet.model import Fleet, Host
from preflight.hook.child import probe
from preflight.hook.model import Judged, Unjudged
from preflight.transport.bundle import start_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from preflight.core.registry import Registry
    from preflight.facts.model import Facts
    from preflight.hook.model import HookConfig, Occasion


LAST_S: Final = 1.8
"""What the probe keeps of its time for the processes, which it asks for after the driver, and for
its answer."""

LEAST_S: Final = 0.5


class SilentError(PreflightError):
    """The probe was not done when its time was up: nothing is known of the node, good or bad."""


class _Here(LocalConnection):
    """Runs the payload where it is installed: none is packed for a node that has it."""

    def start_entry(self, entry: str, *, timeout_s: float, limit: int = OUTPUT_LIMIT) -> PipeRemote:
        """Return the probe, which the hook has begun already; what it reads is its request."""
        del entry
        try:
            return PipeRemote(probe(), timeout_s, limit)
        except OSError as error:
            advice = "install coreutils' timeout"
            raise ReachError("python", f"cannot start a process here: {error}", advice) from error


@contextmanager
def asked(
    name: str, config: HookConfig, deadline_s: float, *, spare: bool
) -> Iterator[Callable[[], Facts]]:
    """Have this node's facts read; what is yielded waits for them and returns them.

    `spare` leaves out nvidia-smi, which takes longer than all the rest. SilentError when the time
    is up; WireError for an answer that is none, which is a fault of ours.
    """
    host = Host(name=name, address="127.0.0.1", transport="local", python=(sys.executable,))
    request = {
        "nonce": (nonce := os.urandom(16).hex()),
        "name": name,
        "deadline_s": deadline_s,
        "driver_deadline_s": driver_s(deadline_s),
        "sysfs": str(config.sysfs),
        "kmsg": str(config.kernel_log),
        "spare": spare,
    }
    began = time.monotonic()
    try:
        talk = start_payload(_Here(), host, "probe", request, deadline_s)
        try:
            talk.finish()
            yield lambda: decode_facts(talk.read(deadline_s), nonce)
        finally:
            talk.close()
    except (ReachError, TimeoutError) as error:
        if time.monotonic() - began >= deadline_s:
            raise SilentError(f"the probe gave no answer within {deadline_s:.1f} s") from error
        raise WireError(f"the probe gave no answer: {error}") from error


def driver_s(deadline_s: float) -> float:
    """How long the driver may take, of so much for the whole probe."""
    return max(LEAST_S, min(DRIVER_S, deadline_s - LAST_S))


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}")

JUDGE_S: Final = 0.5
"""Of the budget, for the judges: they take some tenths of a second on a busy machine."""

ACT_S: Final = 2.0
"""Of the budget, for asking the scheduler and telling it."""

ACT_SHARE: Final = 1 / 4
JUDGE_SHARE: Final = 1 / 16
"""No more than these of a budget that is shorter than the usual one."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was found, and the facts that it rests on, where there are any."""

    judged: Judged
    facts: Facts | None = None
    saw: Mapping[str, bool] = field(default_factory=dict)
    """Of the checks whose fault a second look must see, whether this one did (`second_look`)."""


def node_name(environ: Mapping[str, str], typed: str = "") -> str:
    """How this node is called: as typed, as slurmd says, or by its own host name."""
    return typed or environ.get("SLURMD_NODENAME", "") or os.uname().nodename.partition(".")[0]


def look(
    name: str, config: HookConfig, occasion: Occasion, environ: Mapping[str, str], ends: float
) -> Look:
    """Judge this node before `ends` (time.monotonic). Raises nothing that it can foresee.

    A prolog judges the job's GPUs alone, a health check all of them.
    """
    began = time.monotonic()
    judge_by = ends - min(ACT_S, ACT_SHARE * (ends - began))
    ask_by = judge_by - min(JUDGE_S, JUDGE_SHARE * (ends - began))
    try:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name[:80]!a} is no name of a node: give one with --node")
        deadline_s = max(LEAST_S, ask_by - time.monotonic())
        prolog = occasion == "prolog"
        with asked(name, config, deadline_s, spare=prolog) as answer:
            # What judges is loaded while the probe reads: that takes about as long.
            from preflight.hook import judging
            from preflight.hook.second_look import seen_before

            registry = judging.checks()
            fleet = promised(name, config, registry)
            before = seen_before(config.state_dir)
            facts = answer()
    except SilentError as error:
        late = Unjudged(check="reach.answer", why=str(error), out_of_time=True)
        judged = Judged(node=name, unknown=(late,), seconds=time.monotonic() - began)
        return Look(judged)
    except (PreflightError, OSError) as error:
        trouble = str(error) or type(error).__name__
        return Look(Judged(node=name, trouble=trouble, seconds=time.monotonic() - began))
    known = judging.patched(facts, config) if prolog else judging.Patched(facts)
    share = judging.share_of(environ, config) if prolog else judging.Share()
    seen = judging.view(known.facts, fleet.hosts[0].promised, share)
    found = judging.judge(registry, fleet, known.facts, seen, judge_by, before=before)
    return Look(
        Judged(
            node=name,
            findings=found.findings,
            unknown=found.unknown,
            passed=found.passed,
            facts_age_s=known.age_s,
            trouble=found.broken,
            seconds=time.monotonic() - began,
        ),
        facts,
        found.saw,
    )


def promised(name: str, config: HookConfig, registry: Registry) -> Fleet:
    """Return this node as the inventory has it; UsageError where that does not know it."""
    if config.inventory is None:
        fleet = Fleet(hosts=(Host(name=name, address="127.0.0.1"),), origin="this machine")
    else:
        from preflight.core.text import did_you_mean
        from preflight.fleet.sources import FleetRequest, resolve

        names = _names_in(config.inventory)
        if name not in names:
            # A run may judge nodes of no group; here that would promise nothing, and hide a loss.
            said = f"{config.inventory} does not name {name}{did_you_mean(name, names)}"
            raise UsageError(f"{said}; add it there, or give its name with --node")
        fleet = resolve(FleetRequest(nodes=name, inventory=str(config.inventory), ask_slurm=False))
    (host,) = fleet.hosts
    skipped = {registry.find(check_id).check.id: "hook.toml" for check_id in config.skip}
    here = replace(
        host,
        address="127.0.0.1",
        transport="local",
        python=(sys.executable,),
        off={**host.off, **skipped},
    )
    return replace(fleet, hosts=(here,))


def _names_in(path: Path) -> tuple[str, ...]:
    """Every node that the inventory names; UsageError in the words of hook.toml, not of a run."""
    from preflight.core.text import decoded
    from preflight.fleet.inventory import LARGEST, inventory_of

    refuse_others(path)
    try:
        text = decoded(read_regular(path, LARGEST))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        said = f"cannot read the inventory of hook.toml, {path}: {why}"
        raise UsageError(f"{said}; give a readable file of TOML") from error
    return inventory_of(path, text).names
