"""Which rounds of pairs this run has: by option and history, by a replayed run, or as told."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from preflight import handover
from preflight.errors import UsageError
from preflight.estimate import expected
from preflight.fabric.planner import plan
from preflight.fabric.schedule import default_rounds
from preflight.history.place import VARIABLE
from preflight.nightly import open_history

if TYPE_CHECKING:
    from collections.abc import Collection

    import pytest

    from preflight.check import Stage
    from preflight.estimate import Expected
    from preflight.fabric.planner import Extent, Planned
    from preflight.fleet.model import Fleet
    from preflight.nightly import Nightly
    from preflight.settings import Settings
    from preflight.stages.measured import Measured

LARGEST_SEED = (1 << 32) - 1
RANDOM_SEEDS = 1_000_000
"""A seed is typed again by hand; a million orders are enough."""


def choose_rounds(
    config: pytest.Config,
    fleet: Fleet,
    settings: Settings,
    replayed: Measured | None,
    stages: Collection[Stage],
) -> tuple[Planned | None, Nightly | None, list[str], Expected | None]:
    """Plan the rounds and open the history; UsageError for a history that is of no use.

    `stages`: those that the run will measure. The lines tell what they should take; by the last, a
    run whose plan cannot fit is refused. None: the operator gave the number of rounds.
    """
    if hasattr(config, "workerinput"):
        return handover.planned(config.workerinput), None, [], None
    if replayed is not None:
        return replayed.planned, None, [], None
    nodes = tuple(host.name for host in fleet.hosts)
    history = _history(config, fleet, settings)
    past, wall_s = history.past if history else None, settings.wall_s
    ahead = expected(
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
        cost=ahead.cost(wall_s),
        topology=fleet.topology,
    )
    rounds = len(planned.rounds) if "fabric" in stages else 0
    usual = default_rounds(len(nodes)) if rounds and extent == "auto" else 0
    lines = ahead.lines(wall_s, rounds, max(rounds, usual))
    return planned, history, lines, ahead if extent == "auto" else None


def refuse_odd_rounds(config: pytest.Config) -> None:
    """Refuse what is no number of rounds and no seed, before anybody is asked anything."""
    _extent(config)
    seed = config.getoption("preflight_seed")
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise UsageError(f"--preflight-seed={seed}: give a number, 0 to {LARGEST_SEED}")


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


def _history(config: pytest.Config, fleet: Fleet, settings: Settings) -> Nightly | None:
    text = config.getoption("preflight_history")
    if text is None:
        text = os.environ.get(VARIABLE)
    if text is None:
        return None
    return open_history(text, config.invocation_params.dir, fleet, settings.tier)
