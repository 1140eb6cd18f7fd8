"""Judges the node we run on: its promise, its facts, the job's GPUs and the time there is."""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from preflight.errors import PreflightError, UsageError
from preflight.fleet.files import read_regular, refuse_others
from preflight.fleet.model import Fleet, Host
from preflight.hook.asking import LEAST_S, SilentError, ask
from preflight.hook.job_gpus import Share, share_of, view
from preflight.hook.judging import checks, judge
from preflight.hook.model import Judged, Unjudged
from preflight.hook.periodic import Patched, patched
from preflight.hook.second_look import seen_before

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from preflight.facts.model import Facts
    from preflight.hook.model import HookConfig, Occasion
    from preflight.registry import Registry

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
        registry = checks()
        fleet = promised(name, config, registry)
        deadline_s = max(LEAST_S, ask_by - time.monotonic())
        prolog = occasion == "prolog"
        before = seen_before(config.state_dir)
        facts = ask(name, config, deadline_s, spare=prolog)
    except SilentError as error:
        late = Unjudged(check="reach.answer", why=str(error), out_of_time=True)
        judged = Judged(node=name, unknown=(late,), seconds=time.monotonic() - began)
        return Look(judged)
    except (PreflightError, OSError) as error:
        trouble = str(error) or type(error).__name__
        return Look(Judged(node=name, trouble=trouble, seconds=time.monotonic() - began))
    known = patched(facts, config) if prolog else Patched(facts)
    share = share_of(environ, config) if prolog else Share()
    seen = view(known.facts, fleet.hosts[0].promised, share)
    found = judge(registry, fleet, known.facts, seen, judge_by, before=before)
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
        from preflight.fleet.sources import Wish, resolve
        from preflight.fleet.words import did_you_mean

        names = _names_in(config.inventory)
        if name not in names:
            # A run may judge nodes of no group; here that would promise nothing, and hide a loss.
            said = f"{config.inventory} does not name {name}{did_you_mean(name, names)}"
            raise UsageError(f"{said}; add it there, or give its name with --node")
        fleet = resolve(Wish(nodes=name, inventory=str(config.inventory), ask_slurm=False))
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
    from preflight.fleet.inventory import LARGEST, inventory_of

    refuse_others(path)
    try:
        text = read_regular(path, LARGEST).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        said = f"cannot read the inventory of hook.toml, {path}: {why}"
        raise UsageError(f"{said}; give a readable file of TOML") from error
    return inventory_of(path, text).names
