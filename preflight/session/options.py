"""What the operator chose, read from pytest's options and ini keys; wrong usage ends here."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from preflight import handover
from preflight.errors import UsageError
from preflight.fabric.stored.sane import refuse_absurd_sweep
from preflight.fleet.files import read_regular
from preflight.fleet.sources import Wish, resolve
from preflight.fleet.waivers import refuse_unknown
from preflight.judgement import stages_needed
from preflight.ranks import leading
from preflight.registry import Registry, load_folder, shipped_folder
from preflight.report.outputs import Outputs
from preflight.report.runs import KEEP
from preflight.rounds import choose_rounds, refuse_odd_rounds
from preflight.settings import Settings
from preflight.sitehooks import ask_nodes, ask_sections
from preflight.stages.measured import LARGEST, Measured
from preflight.transport.fanout import SETUP_AT_MOST
from preflight.window import seconds_back

if TYPE_CHECKING:
    import pytest

    from preflight.estimate import Expected
    from preflight.fabric.planner import Planned
    from preflight.fleet.model import Fleet
    from preflight.fleet.sources import Found
    from preflight.nightly import Nightly
    from preflight.settings import FailFast
    from preflight.torchrun.crew import Crew

MOST_AT_ONCE = 1024
LONGEST_BUDGET_S = 7 * 86400
LOWEST_RATE, HIGHEST_RATE = 0.001, 100.0


@dataclass(frozen=True)
class Chosen:
    """A run as it was asked for. `wanted`: only these checks; None for all of the tier."""

    fleet: Fleet
    found: Found | None
    """What a hook of the site answered, for the workers."""
    registry: Registry
    wanted: frozenset[str] | None
    settings: Settings
    replayed: Measured | None
    planned: Planned | None
    """The rounds of pairs; None for a replay of a run that did not keep them."""
    history: Nightly | None
    estimate: list[str]
    ahead: Expected | None
    """What the run should take and what of it has no time, for the header; none for a replay."""
    outputs: Outputs
    items: str | None
    strict: bool
    need: int | None
    began_s: float = field(default_factory=time.time)


def read_options(config: pytest.Config) -> Chosen:
    """Read everything; UsageError in one line that says what to type."""
    _refuse_rivals(config)
    registry = _registry(config)
    began_s = time.time()
    settings = Settings(
        tier=config.getoption("preflight_tier") or "quick",
        fail_fast=config.getoption("preflight_fail_fast") or _patience(config),
        budget_s=config.getoption("preflight_budget"),
        even_if_busy=config.getoption("preflight_even_if_busy"),
        sections=() if hasattr(config, "workerinput") else ask_sections(config),
        at_most=config.getoption("preflight_at_once") or SETUP_AT_MOST,
        kernel_log_since_s=seconds_back(config.getoption("preflight_kernel_log_since")),
        catch_rate=config.getoption("preflight_catch_rate"),
        keep_nccl_logs=config.getoption("preflight_keep_nccl_logs"),
    )
    outputs = Outputs.beside(
        config.invocation_params.dir, config.getoption("preflight_report"), began_s
    )
    if typed := config.getoption("preflight_exclude_file"):
        outputs.exclude_file = config.invocation_params.dir / Path(typed).expanduser()
    outputs.keep, outputs.metrics = _keep(config), _metrics(config)
    if not config.option.collectonly and not hasattr(config, "workerinput"):
        outputs.refuse_unusable()
    rank_0 = leading(config)
    found = None if rank_0 else _found(config)
    fleet = resolve(_wish(config, found, rank_0.crew if rank_0 else None))
    refuse_unknown(fleet.spoken, [one.check.id for one in registry])
    need = config.getoption("preflight_need")
    if need is not None and need > len(fleet.hosts):
        raise UsageError(f"--preflight-need={need}: the fleet has {len(fleet.hosts)} nodes only")
    replayed = _replayed(config.getoption("preflight_replay"))
    wanted = _wanted(config.getoption("preflight_checks"), registry)
    checks = [one.check for one in registry if one.check.within(settings.tier)]
    asked = [check.id for check in checks if wanted is None or check.id in wanted]
    stages = stages_needed(registry, asked)
    planned, history, estimate, ahead = choose_rounds(config, fleet, settings, replayed, stages)
    return Chosen(
        fleet=fleet,
        found=found,
        registry=registry,
        wanted=wanted,
        settings=settings,
        replayed=replayed,
        planned=planned,
        history=history,
        estimate=estimate,
        ahead=ahead,
        outputs=outputs,
        items=config.getoption("preflight_items"),
        strict=config.getoption("preflight_strict"),
        need=need,
        began_s=began_s,
    )


def _refuse_rivals(config: pytest.Config) -> None:
    if config.getoption("reruns", None):
        raise UsageError("--reruns would hide flakiness: leave it out, preflight retests by itself")
    need = config.getoption("preflight_need")
    if need is not None and need < 1:
        raise UsageError(f"--preflight-need={need}: give the number of nodes the job needs")
    at_once = config.getoption("preflight_at_once")
    if at_once is not None and not 1 <= at_once <= MOST_AT_ONCE:
        raise UsageError(f"--preflight-at-once={at_once}: give a number, 1 to {MOST_AT_ONCE}")
    rate = config.getoption("preflight_catch_rate")
    if rate is not None and not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise UsageError(
            f"--preflight-catch-rate={rate:g}: give events per second of load, {LOWEST_RATE:g} to "
            f"{HIGHEST_RATE:g}; rarer ones take more nights"
        )
    budget = config.getoption("preflight_budget")
    if budget is not None and not 1 <= budget <= LONGEST_BUDGET_S:
        raise UsageError(f"--preflight-budget={budget:g}: give seconds, 1 to {LONGEST_BUDGET_S}")
    refuse_odd_rounds(config)


def _keep(config: pytest.Config) -> int:
    keep = config.getoption("preflight_keep")
    if keep is not None and keep < 0:
        raise UsageError(f"--preflight-keep={keep}: give how many runs stay, or 0 for all of them")
    return KEEP if keep is None else int(keep)


def _metrics(config: pytest.Config) -> Path | None:
    path = config.getoption("preflight_prometheus")
    return config.invocation_params.dir / Path(path).expanduser() if path else None


def _registry(config: pytest.Config) -> Registry:
    """The shipped checks and the site's own."""
    site = [Path(folder) for folder in config.getini("preflight_checks")]
    for folder in site:
        if not folder.is_dir():
            raise UsageError(f"preflight_checks: {folder} is no folder: correct the ini file")
    return Registry(
        [check for folder in (shipped_folder(), *site) for check in load_folder(folder)]
    )


def _wanted(text: str | None, registry: Registry) -> frozenset[str] | None:
    if text is None:
        return None
    ids = [word.strip() for word in text.split(",") if word.strip()]
    if not ids:
        raise UsageError("--preflight-checks is empty: give ids, see: preflight checks")
    return frozenset(registry.find(check_id).check.id for check_id in ids)


def _patience(config: pytest.Config) -> FailFast:
    """Whoever is content with some ready nodes wants all judged before they are counted."""
    return "never" if config.getoption("preflight_need") is not None else "stage"


def _found(config: pytest.Config) -> Found | None:
    """Ask the site's plugins, unless the operator named the nodes; a worker is told the answer."""
    if hasattr(config, "workerinput"):
        return handover.found(config.workerinput)
    named = any(config.getoption(f"preflight_{how}") is not None for how in ("nodes", "inventory"))
    return None if named or "PREFLIGHT_NODES" in os.environ else ask_nodes(config)


def _wish(config: pytest.Config, found: Found | None, crew: Crew | None = None) -> Wish:
    def said(name: str) -> str | None:
        value = config.getoption(f"preflight_{name}")
        return None if value is None else str(value)

    return Wish(
        nodes=said("nodes"),
        inventory=said("inventory"),
        exclude=said("exclude"),
        transport=said("transport"),
        python=said("python"),
        env_file=said("env_file"),
        launch=said("launch"),
        script=said("script"),
        interface=said("interface"),
        topology=said("topology"),
        ask_slurm=not hasattr(config, "workerinput"),
        logs_in=config.getoption("preflight_replay") is None,
        found=found,
        ini_nodes=config.getini("preflight_nodes") or None,
        ini_inventory=config.getini("preflight_inventory") or None,
        environ=dict(os.environ),
        ranked=crew.ranked() if crew else None,
    )


def _replayed(path: str | None) -> Measured | None:
    if path is None:
        return None
    try:
        measured = Measured.decode(read_regular(Path(path).expanduser(), LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"cannot read the measurements {path}: {error}; give the measured.json of a run"
        ) from error
    if measured.sweep is not None:
        try:
            refuse_absurd_sweep(measured.sweep)
        except UsageError as error:
            raise UsageError(f"{path}: sweep.{error}") from error
    return measured
