"""Checks the local node within its time: reads its facts and what the inventory expects of it."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from preflight.core.files import read_text, refuse_others
from preflight.core.remote_command import OUTPUT_LIMIT, LocalConnection, PipeRemote, ReachError
from preflight.errors import PreflightError, UsageError, WireError
from preflight.facts.model import DRIVER_S, Facts, decode_document
from preflight.fleet.model import Fleet, Host
from preflight.hook.child import probe
from preflight.hook.hook_values import Assessment, Unjudged
from preflight.transport.bundle import start_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from preflight.core.registry import Registry
    from preflight.hook.hook_values import HookConfig, Occasion


LAST_S: Final = 1.8
"""Part of the probe's time reserved for the processes, which it lists after the driver's values,
and for its reply."""

LEAST_S: Final = 0.5


class SilentError(PreflightError):
    """The probe did not finish in time: nothing is known about the node, good or bad."""


class _Here(LocalConnection):
    """Runs the installed payload, so that none has to be packed."""

    def start_entry(self, entry: str, *, timeout_s: float, limit: int = OUTPUT_LIMIT) -> PipeRemote:
        """Return the probe, which the hook has started already and which awaits its request."""
        del entry
        try:
            return PipeRemote(probe(), timeout_s, limit)
        except OSError as error:
            advice = "install coreutils' timeout"
            raise ReachError("python", f"cannot start a process here: {error}", advice) from error


@contextmanager
def read_facts(
    name: str, config: HookConfig, deadline_s: float, *, spare: bool
) -> Iterator[Callable[[], Facts]]:
    """Start to read this node's facts; yield a function that waits for them and returns them.

    `spare` leaves out nvidia-smi, which takes longer than all the rest. SilentError when the time
    is up; WireError for an invalid reply, which is an error of preflight.
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
            yield lambda: decode_document(Facts, talk.read(deadline_s), nonce)
        finally:
            talk.close()
    except (ReachError, TimeoutError) as error:
        if time.monotonic() - began >= deadline_s:
            raise SilentError(f"the probe did not answer within {deadline_s:.1f} s") from error
        raise WireError(f"the probe did not answer: {error}") from error


def driver_s(deadline_s: float) -> float:
    """How long the driver may take, of `deadline_s` for the whole probe."""
    return max(LEAST_S, min(DRIVER_S, deadline_s - LAST_S))


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}")

JUDGE_S: Final = 0.5
"""Part of the budget for the judges: they take some tenths of a second on a busy machine."""

ACT_S: Final = 2.0
"""Part of the budget for calls to the scheduler."""

ACT_SHARE: Final = 1 / 4
JUDGE_SHARE: Final = 1 / 16
"""At most these shares of a budget that is shorter than the default."""


class Inspection(Struct, frozen=True):
    """What was found, and the facts that it rests on; None where none could be read."""

    assessment: Assessment
    facts: Facts | None = None
    saw: Mapping[str, bool] = {}
    """Whether each check of `confirmation` saw its fault this time."""


def node_name(environ: Mapping[str, str], typed: str = "") -> str:
    """Return this node's name: as typed, else from slurmd, else its host name."""
    return typed or environ.get("SLURMD_NODENAME", "") or os.uname().nodename.partition(".")[0]


def inspect_node(
    name: str, config: HookConfig, occasion: Occasion, environ: Mapping[str, str], ends: float
) -> Inspection:
    """Check this node before `ends` (time.monotonic). Raises no expected error.

    A prolog checks only the job's GPUs, a health check all of them.
    """
    began = time.monotonic()
    judge_by = ends - min(ACT_S, ACT_SHARE * (ends - began))
    ask_by = judge_by - min(JUDGE_S, JUDGE_SHARE * (ends - began))
    try:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name[:80]!a} is not a node name: give one with --node=NAME")
        deadline_s = max(LEAST_S, ask_by - time.monotonic())
        prolog = occasion == "prolog"
        with read_facts(name, config, deadline_s, spare=prolog) as answer:
            # The judges are imported while the probe reads: both take about as long.
            from preflight.hook import judging
            from preflight.hook.confirmation import load_faults

            registry = judging.checks()
            fleet = expected(name, config, registry)
            before = load_faults(config.state_dir)
            facts = answer()
            # Another hook may meanwhile have seen that the fault is over.
            before &= load_faults(config.state_dir)
    except SilentError as error:
        late = Unjudged(check="reach.answer", why=str(error), out_of_time=True)
        assessment = Assessment(node=name, unknown=(late,), seconds=time.monotonic() - began)
        return Inspection(assessment)
    except (PreflightError, OSError) as error:
        trouble = str(error) or type(error).__name__
        return Inspection(Assessment(node=name, trouble=trouble, seconds=time.monotonic() - began))
    known = judging.complete_facts(facts, config) if prolog else judging.CompletedFacts(facts)
    share = judging.share_of(environ, config) if prolog else judging.Share()
    seen = judging.view(known.facts, fleet.hosts[0].expected, share)
    found = judging.judge(registry, fleet, known.facts, seen, judge_by, before=before)
    return Inspection(
        Assessment(
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


def expected(name: str, config: HookConfig, registry: Registry) -> Fleet:
    """Return this node as the inventory has it; UsageError where the inventory lacks it."""
    if config.inventory is None:
        fleet = Fleet(hosts=(Host(name=name, address="127.0.0.1"),), origin="this machine")
    else:
        from preflight.core.text import did_you_mean
        from preflight.fleet.sources import FleetRequest, resolve

        names = _names_in(config.inventory)
        if name not in names:
            # A run may check nodes of no group; here nothing would be expected, which hides a loss.
            problem = f"{config.inventory} does not name {name}{did_you_mean(name, names)}"
            raise UsageError(f"{problem}; add it there, or give its name with --node=NAME")
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
    """Return the nodes of the inventory; UsageError that names hook.toml, not the command line."""
    from preflight.fleet.inventory import LARGEST, inventory_of

    refuse_others(path)
    what = f"the inventory of hook.toml, {path}"
    return inventory_of(path, read_text(path, LARGEST, what, "give a readable TOML file")).names
