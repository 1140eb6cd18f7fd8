"""Reads pytest's options and ini keys into the choices for a run; refuses wrong usage."""

from __future__ import annotations

import math
import os
import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.core.command_line import refuse_small_limits
from preflight.core.files import is_folder, typed_path
from preflight.core.registry import Registry, load_folder, shipped_folder
from preflight.core.text import count
from preflight.errors import UsageError
from preflight.fabric.planner import Extent, plan
from preflight.fabric.schedule import Planned, default_rounds
from preflight.fleet.inventory_tables import refuse_unknown_checks
from preflight.fleet.nodeset import fold
from preflight.fleet.sources import FleetRequest, SiteNodes, resolve
from preflight.history.place import VARIABLE
from preflight.report.document import Report, moment
from preflight.report.events import reread
from preflight.report.outputs import Outputs
from preflight.run.estimate import Workload, workload
from preflight.run.expected_verdicts import Settings
from preflight.run.judgement import stages_needed
from preflight.run.measured import Measured, read_measured
from preflight.session.ranks import rank_0_plugin
from preflight.session.site import ask_nodes, ask_sections, load_site
from preflight.session.stored_run import HistorySession, open_history
from preflight.session.xdist import Handoff, is_worker
from preflight.transport.ways import SETUP_AT_MOST

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import pytest

    from preflight.check import Stage, Tier
    from preflight.fleet.model import Fleet


RANDOM_SEEDS = 1_000_000
"""Random seeds are below this, so that they are short to type; a million orders are enough."""


def choose_rounds(
    config: pytest.Config, fleet: Fleet, settings: Settings, stages: Collection[Stage]
) -> tuple[Planned, HistorySession | None, list[str], Workload | None]:
    """Plan the rounds and open the history; UsageError for an unusable history.

    `stages`: those that the run will measure. The lines estimate their time; the last value serves
    to refuse a run that cannot fit, and is None if the operator gave the number of rounds.
    """
    nodes = tuple(host.name for host in fleet.hosts)
    place = config.getoption("preflight_history")
    place = os.environ.get(VARIABLE) if place is None else place
    working = config.invocation_params.dir
    history = None if place is None else open_history(place, working, fleet, settings.tier)
    past, wall_s = history.past if history else None, settings.wall_s
    work = workload(
        fleet,
        settings.tier,
        stages,
        catch_rate=settings.soak_rate,
        last=past.costs.get(settings.tier) if past else None,
    )
    extent = _extent(config)
    seed = config.getoption("preflight_seed")
    planned = plan(
        nodes,
        fleet.leaves,
        extent=extent,
        seed=secrets.randbelow(RANDOM_SEEDS) if seed is None else seed,
        past=past,
        budget_s=wall_s,
        cost=work.cost(wall_s),
        topology=fleet.topology,
    )
    rounds = len(planned.rounds) if "fabric" in stages else 0
    usual = default_rounds(len(nodes)) if rounds and extent == "auto" else 0
    lines = work.lines(wall_s, rounds, max(rounds, usual))
    return planned, history, lines, work if extent == "auto" else None


def _extent(config: pytest.Config) -> Extent:
    text = config.getoption("preflight_sweep")
    if text in (None, "auto"):
        return "auto"
    if text == "exhaustive":
        return "exhaustive"
    if text.isdecimal() and text.isascii() and int(text[:9]) > 0:
        return int(text[:9])
    raise UsageError(
        f"--preflight-sweep={text[:40]!a}: give a number of rounds, 1 or more, auto, or exhaustive"
    )


OPTION = "--preflight-kernel-log-since"
LONGEST_S = 10 * 365 * 86400.0
_SPAN_PATTERN = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_span(text: str) -> float | None:
    """Parse a span such as 90m, 1.5h or 3d; None for anything else."""
    span = _SPAN_PATTERN.fullmatch(text)
    return float(span[1]) * _UNITS[span[2]] if span else None


def parse_age(text: str | None) -> float | None:
    """Parse "boot", "2h", "3d", or a time such as 2026-11-21T08:00; None for all since boot.

    A time without a zone is this machine's. UsageError for anything else.
    """
    if text is None or text == "boot":
        return None
    seconds = parse_span(text)
    with suppress(ValueError, OverflowError):
        if seconds is None:
            seconds = time.time() - datetime.fromisoformat(text).astimezone().timestamp()
    if seconds is None or not 0 < seconds <= LONGEST_S:
        raise UsageError(
            f"{OPTION} {text[:40]!a}: give boot, an age such as 90m, 2h or 3d, or a time in the "
            "past such as 2026-11-21T08:00"
        )
    return seconds


@dataclass(frozen=True)
class Choices:
    """The operator's choices for a run. `selected`: only these checks; None: all of the tier."""

    fleet: Fleet
    site_nodes: SiteNodes | None
    """The nodes that a hook of the site named, for xdist's workers."""
    registry: Registry
    selected: frozenset[str] | None
    settings: Settings
    replay: str
    """The recorded run that is judged again, in words, and when it was."""
    replayed: Measured | None
    planned: Planned | None
    """The rounds of pairs; None for a replay of a run that did not record them."""
    history: HistorySession | None
    estimate: list[str]
    workload: Workload | None
    """The run's estimated time and what does not fit into it; None for a replay."""
    outputs: Outputs
    items: str | None
    strict: bool
    need: int | None
    began_s: float


def read_options(config: pytest.Config) -> Choices:
    """Read everything; UsageError in one line that says what to type."""
    _refuse_bad_values(config)
    handoff = Handoff.received(config)
    site = load_site([Path(folder) for folder in config.getini("preflight_checks")])
    registry = Registry([*load_folder(shipped_folder()), *site])
    typed = config.getoption("preflight_checks")
    selected = None if typed is None else registry.select(typed)
    began_s = time.time()
    replay, past_report = _replay_file(config), None
    if replay is not None:
        with suppress(UsageError):
            past_report = reread(replay.parent)
    settings = _read_settings(config, handoff, past_report.tier if past_report else "quick")
    outputs = _read_outputs(config, began_s)
    if not config.option.collectonly and not handoff:
        refuse_small_limits()
        outputs.refuse_unusable()
    fleet, site_nodes = _find_fleet(config, handoff)
    refuse_unknown_checks(fleet.mentioned_checks, [entry.check.id for entry in registry])
    need = config.getoption("preflight_need")
    if need is not None and need > len(fleet.hosts):
        nodes = count(len(fleet.hosts), "node")
        raise UsageError(f"--preflight-need={need}: the fleet has only {nodes}")
    replayed = _read_replay(replay, fleet)
    checks = [entry.check for entry in registry if entry.check.within(settings.tier)]
    check_ids = [check.id for check in checks if selected is None or check.id in selected]
    stages = stages_needed(registry, check_ids)
    source = handoff or replayed
    planned, history, estimate, work = (
        (source.planned, None, list[str](), None)
        if source is not None
        else choose_rounds(config, fleet, settings, stages)
    )
    return Choices(
        fleet=fleet,
        site_nodes=site_nodes,
        registry=registry,
        selected=selected,
        settings=settings,
        replay=_replay_words(replay, past_report, replayed.nonce) if replay and replayed else "",
        replayed=replayed,
        planned=planned,
        history=history,
        estimate=estimate,
        workload=work,
        outputs=outputs,
        items=config.getoption("preflight_items"),
        strict=config.getoption("preflight_strict"),
        need=need,
        began_s=began_s,
    )


def _read_settings(config: pytest.Config, handoff: Handoff | None, usual_tier: Tier) -> Settings:
    need = config.getoption("preflight_need")
    return Settings(
        tier=config.getoption("preflight_tier") or usual_tier,
        # With --preflight-need all nodes are judged before the ready ones are counted.
        fail_fast=config.getoption("preflight_fail_fast") or ("stage" if need is None else "never"),
        budget_s=config.getoption("preflight_budget"),
        even_if_busy=config.getoption("preflight_even_if_busy"),
        sections=() if handoff else ask_sections(config),
        at_most=config.getoption("preflight_at_once") or SETUP_AT_MOST,
        kernel_log_since_s=parse_age(config.getoption("preflight_kernel_log_since")),
        catch_rate=config.getoption("preflight_catch_rate"),
        keep_nccl_logs=config.getoption("preflight_keep_nccl_logs"),
    )


def _read_outputs(config: pytest.Config, began_s: float) -> Outputs:
    folder = config.invocation_params.dir
    outputs = Outputs.for_run(folder, config.getoption("preflight_report"), began_s)
    outputs.exclude_file = _output_file(config, "preflight_exclude_file")
    outputs.metrics = _output_file(config, "preflight_prometheus")
    if (keep := config.getoption("preflight_keep")) is not None:
        outputs.keep = keep
    return outputs


_RANGES: Mapping[str, tuple[float, float, str]] = {
    "need": (1, math.inf, "the number of nodes the job needs"),
    "at_once": (1, 1024, "a number, 1 to 1024"),
    "catch_rate": (
        0.001,
        100,
        "events per second of load, 0.001 to 100; rarer ones take more nights",
    ),
    "budget": (1, 604_800, "seconds, 1 to 604800"),
    "keep": (0, math.inf, "how many runs stay, or 0 for all of them"),
    "seed": (0, 4_294_967_295, "a number, 0 to 4294967295"),
}
"""By option, its least and greatest value, and what to give."""


def refuse_out_of_range(name: str, value: float | None) -> None:
    """UsageError for a number that the option of that name does not take."""
    lowest, highest, advice = _RANGES[name]
    if value is not None and not lowest <= value <= highest:
        option = f"--preflight-{name.replace('_', '-')}"
        typed = f"{value:g}" if isinstance(value, float) else str(value)
        raise UsageError(f"{option}={typed}: give {advice}")


def _refuse_bad_values(config: pytest.Config) -> None:
    if config.getoption("reruns", None):
        raise UsageError("--reruns would hide flakiness: leave it out, preflight retests by itself")
    for name in _RANGES:
        refuse_out_of_range(name, config.getoption(f"preflight_{name}"))
    for name in ("report", "prometheus", "exclude_file", "replay"):
        if config.getoption(f"preflight_{name}") == "":
            raise UsageError(f"--preflight-{name.replace('_', '-')} is empty: give a path")
    _extent(config)


def _output_file(config: pytest.Config, option: str) -> Path | None:
    path = config.getoption(option)
    return config.invocation_params.dir / typed_path(path) if path else None


_FLEET_OPTIONS = (
    *("nodes", "inventory", "exclude", "transport", "python", "env_file", "launch", "script"),
    *("interface", "topology"),
)
"""Options that describe the fleet."""


def _find_fleet(config: pytest.Config, handoff: Handoff | None) -> tuple[Fleet, SiteNodes | None]:
    """The fleet, and the nodes that a hook of the site named where nothing else does."""
    rank_0 = rank_0_plugin(config)
    ranks = rank_0.ranks if rank_0 else None
    is_typed = "PREFLIGHT_NODES" in os.environ or any(
        config.getoption(f"preflight_{how}") is not None for how in ("nodes", "inventory")
    )
    site_nodes = handoff.site_nodes if handoff else None
    if not (handoff or rank_0 or is_typed):
        site_nodes = ask_nodes(config)
    request = FleetRequest(
        **{name: config.getoption(f"preflight_{name}") for name in _FLEET_OPTIONS},
        ask_slurm=not is_worker(config),
        logs_in=config.getoption("preflight_replay") is None,
        site=site_nodes,
        ini_nodes=config.getini("preflight_nodes") or None,
        ini_inventory=config.getini("preflight_inventory") or None,
        environ=dict(os.environ),
        ranked=ranks.ranked() if ranks else None,
    )
    return resolve(request), site_nodes


def _replay_file(config: pytest.Config) -> Path | None:
    typed = config.getoption("preflight_replay")
    if typed is None:
        return None
    path = typed_path(typed)
    return path / "measured.json" if is_folder(path) else path


def _replay_words(replay: Path, past: Report | None, run: str) -> str:
    when = f" of {moment(past.started):%Y-%m-%d %H:%M %Z}" if past and past.run == run else ""
    return f"the run{when} in {replay}, judged again; contacts no node"


def _read_replay(path: Path | None, fleet: Fleet) -> Measured | None:
    if path is None:
        return None
    measured = read_measured(path)
    unmeasured = fold(host.name for host in fleet.hosts if host.name not in measured.reach)
    if unmeasured and "reach" not in measured.skipped:
        advice = f"leave it out with --preflight-exclude={unmeasured}"
        if all(host.name not in measured.reach for host in fleet.hosts):
            nodes = fold(measured.reach)
            advice = f"type --preflight-nodes={nodes}" if nodes else "give a run that reached nodes"
        raise UsageError(f"--preflight-replay={path}: it holds no data of {unmeasured}: {advice}")
    return measured
