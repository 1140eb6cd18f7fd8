"""What a sweep begins with: its fleet, whom it may look at, its waves; or one cut short."""

from __future__ import annotations

import os
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from preflight import __version__
from preflight.commands.sweep_options import wish
from preflight.errors import UsageError
from preflight.fleet.sources import resolve
from preflight.report.runs import KEEP
from preflight.report.text import printable
from preflight.settings import BUDGET_S
from preflight.sweeping.idle import Chooser, chooser, chosen_way
from preflight.sweeping.nights import ANEW, former_nights, latest
from preflight.sweeping.state import TOO_OLD_S, Sweep, WaveState
from preflight.sweeping.waves import plan_waves

if TYPE_CHECKING:
    from datetime import datetime

    from preflight.check import Tier
    from preflight.commands.sweep_options import Asked


def who_for(asked: Asked, before: Sweep | None) -> Chooser:
    """How nodes are chosen: as is said now, else as when the sweep was begun."""
    way = chosen_way(idle=asked.idle, reservation=asked.reservation, whole=asked.whole_fleet)
    if way is None and before is not None:
        return chooser(os.environ, before.whom, before.reservation)
    return chooser(os.environ, way, asked.reservation or "")


def begin(asked: Asked, who: Chooser, into: Path) -> Sweep:
    """Find the fleet, leave out whoever is busy, and plan the waves; UsageError."""
    fleet = resolve(wish(asked))
    if fleet.origin == "this machine":
        raise UsageError(
            "a sweep of which fleet? give --preflight-inventory=FILE, or --preflight-nodes=LIST; "
            "to judge this machine: preflight run"
        )
    names = tuple(host.name for host in fleet.hosts)
    chosen = who.choose(names)
    nights = [night.waves for night in former_nights(into)]
    tier = cast("Tier", asked.said("tier") or "deep")
    if tier not in BUDGET_S:
        raise UsageError(f"--preflight-tier={tier[:40]!a}: give one of {', '.join(BUDGET_S)}")
    return Sweep(
        preflight=__version__,
        sweep=secrets.token_hex(16),
        started_s=time.time(),
        words=asked.words,
        cwd=str(Path.cwd()),
        folders=asked.folders,
        tier=tier,
        usual_s=_usual_s(asked, tier),
        most=asked.wave,
        whom=who.whom,
        reservation=who.reservation,
        strict="--preflight-strict" in asked.told,
        metrics=_file(asked.said("prometheus")),
        exclude_file=_file(asked.said("exclude_file")),
        keep=_keep(asked.said("keep")),
        nodes=names,
        origin=fleet.origin,
        leaves=fleet.leaves,
        topology=fleet.topology,
        left_out=chosen.left_out,
        waves=tuple(
            WaveState(nodes=wave)
            for wave in plan_waves(chosen.nodes, fleet.leaves, asked.wave, nights)
        ),
    )


def _file(said: str | None) -> str:
    return str(Path.cwd() / Path(said).expanduser()) if said else ""


def _keep(said: str | None) -> int:
    if said is None:
        return KEEP
    if not said.isdecimal():
        raise UsageError(f"--preflight-keep={said[:20]!a}: give how many sweeps stay, or 0 for all")
    return int(said[:9])


def _usual_s(asked: Asked, tier: Tier) -> float:
    said = asked.said("budget")
    if said is None:
        return BUDGET_S[tier]
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 7 * 86400:
        raise UsageError(f"--preflight-budget={said[:40]!a}: give the seconds of one wave")
    return seconds


def cut_short(asked: Asked, into: Path) -> tuple[Path, Sweep] | None:
    """The sweep to go on with; None where a new one is to begin. UsageError if neither can be."""
    found = _latest(asked, into)
    if found is None or found[1].finished or found[1].idle_s > TOO_OLD_S:
        if asked.names_a_fleet:
            return None
        raise UsageError(
            f"--resume: no sweep in {asked.into} was cut short lately; to begin one, say of what: "
            "--preflight-inventory=FILE"
        )
    folder, sweep = found
    if asked.names_a_fleet and (asked.words, asked.folders) != (sweep.words, sweep.folders):
        raise UsageError(
            f"--resume: the sweep {folder.name} was begun with other options: repeat those, or "
            "give --resume alone, or leave it out to begin anew"
        )
    waves = tuple(
        replace(wave, stand="waiting") if wave.stand == "broken off" else wave
        for wave in sweep.waves
    )
    return folder, replace(sweep, waves=waves)


def _latest(asked: Asked, into: Path) -> tuple[Path, Sweep] | None:
    """The sweep that began last; a damaged one costs this night nothing where a fleet is named."""
    try:
        return latest(into)
    except UsageError as error:
        if not asked.names_a_fleet:
            raise
        told = printable(str(error).replace(ANEW, "so a new sweep begins"))
        print(f"preflight sweep: {told}", file=sys.stderr)  # noqa: T201  a command speaks
        return None


def end_of(ends: datetime | None, sweep: Sweep, who: Chooser) -> float | None:
    """When it must have ended: as was said now, else when it began; with its reservation anyway."""
    held = who.held()
    times = [held.ends.timestamp()] if held and held.ends else []
    if ends is not None:
        times.append(ends.timestamp())
    elif sweep.ends_s is not None:
        if sweep.ends_s <= time.time():
            raise UsageError("--resume: its time was up: give a later one, --until=TIME")
        times.append(sweep.ends_s)
    return min(times, default=None)
