"""What a sweep begins with: its options, its fleet, its waves, its header."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from preflight import __version__
from preflight.commands.nightly.idle import Chooser, chooser, chosen_way
from preflight.commands.nightly.screen import clock
from preflight.commands.nightly.state import (
    ANEW,
    TOO_OLD_S,
    Sweep,
    WaveState,
    former_nights,
    latest,
)
from preflight.commands.nightly.waves import LEAST, MOST, nights_to_all, plan_waves
from preflight.commands.run import option_parser
from preflight.core.text import printable
from preflight.errors import UsageError
from preflight.fleet.nodeset import fold
from preflight.fleet.sources import Wish, resolve
from preflight.report.outputs import KEEP
from preflight.run.expected_verdicts import BUDGET_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from preflight.check import Tier
    from preflight.commands.nightly.screen import Screen


WAVE = 16
"""Nodes at once, unless said otherwise: so many have every pair of theirs measured in a run."""

INTO = "preflight-sweeps"

_NOT_HERE = {
    "--preflight-report": "a sweep has a folder of its own: --into=DIR",
    "--preflight-fail-fast": "a sweep never stops at a finding, it names them all",
    "--preflight-need": "a sweep starts no job",
    "--preflight-replay": "a sweep measures",
    "--exitfirst": "a sweep never stops at a finding, it names them all",
    "-x": "a sweep never stops at a finding, it names them all",
    "--maxfail": "a sweep never stops at a finding, it names them all",
    "--collect-only": "see its waves with --plan",
    "--co": "see its waves with --plan",
    "--junitxml": "each wave would write over it: see the waves' folders",
}
_OURS = (
    *("--preflight-nodes", "--preflight-exclude", "--preflight-tier", "--preflight-budget"),
    *("--preflight-prometheus", "--preflight-exclude-file", "--preflight-keep"),
)
"""Told to each wave by the sweep itself."""

_EXAMPLES = """\
examples:
  preflight sweep --preflight-inventory=fleet.toml
  preflight sweep --preflight-inventory=fleet.toml --until=06:00 --resume
  preflight sweep --preflight-inventory=fleet.toml --reservation=nightly --wave=32
"""


_AS_GIVEN = ("nodes", "inventory", "exclude", "transport", "python", "env_file", "launch",
             "interface", "topology")  # fmt: skip
"""What a run's options say of the fleet."""


class Asked(argparse.Namespace):
    """What was typed."""

    words: tuple[str, ...]
    """Options that each wave gets as they are."""
    told: Mapping[str, str]
    """Options of a run that the sweep reads itself, by name with its dashes in front."""
    folder: list[str]
    wave: int
    idle: bool
    reservation: str | None
    whole_fleet: bool
    until: str | None
    budget: str | None
    into: str
    resume: bool
    plan: bool

    @property
    def folders(self) -> tuple[str, ...]:
        """Those of the site's own checks."""
        return tuple(self.folder)

    @property
    def names_a_fleet(self) -> bool:
        """Whether it says more than to go on."""
        return bool(self.words or self.told or self.folders)

    def said(self, name: str) -> str | None:
        """Value of `--preflight-NAME`; None where it was not given."""
        return self.told.get(f"--preflight-{name.replace('_', '-')}")


def read_words(argv: Sequence[str]) -> Asked:
    """Read the command line; wrong usage ends here, with exit 4."""
    parser = option_parser(
        "preflight sweep",
        "Judge a whole fleet in waves of idle nodes, each as deep as a night allows:\n"
        "for cron and timers. Nodes that somebody uses are left out and named.",
        own=_add_own,
    )
    parser.usage = "preflight sweep [options] [folder ...]"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    asked = parser.parse_args(argv, Asked(words=[], workers=False))
    given = dict(word.partition("=")[::2] for word in asked.words)
    for name, why in _NOT_HERE.items():
        if name in given:
            raise UsageError(f"{name} is not for a sweep: {why}; leave it out")
    if not LEAST <= asked.wave <= MOST:
        raise UsageError(f"--wave={asked.wave}: give a number of nodes, {LEAST} to {MOST}")
    asked.told = {name: value for name, value in given.items() if name.startswith("--preflight-")}
    asked.words = tuple(word for word in asked.words if word.partition("=")[0] not in _OURS)
    return asked


def _add_own(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--wave", metavar="K", type=int, default=WAVE,
        help=f"nodes at once, {LEAST} to {MOST} (default: {WAVE}; up to 16, every pair of a wave "
        "is measured)")  # fmt: skip
    add("--idle", action="store_true",
        help="only nodes that Slurm calls idle (default where sinfo is at hand); who gets a job "
        "meanwhile is left alone within half a minute")  # fmt: skip
    add("--reservation", metavar="NAME", help="only nodes of this Slurm reservation")
    add("--whole-fleet", action="store_true",
        help="do not ask Slurm (default where it is not); GPUs that somebody works on are spared "
        "all the same")  # fmt: skip
    add("--until", metavar="TIME", help="be done by then, as in 06:00")
    add("--budget", metavar="TIME", help="be done after so long, as in 5h or 90m")
    add("--resume", action="store_true",
        help="go on with the latest sweep if it was cut short; else begin one")  # fmt: skip
    add("--plan", action="store_true", help="show the waves and end; nobody is contacted")
    add("--into", metavar="DIR", default=INTO,
        help=f"where sweeps and their lock are kept (default: {INTO})")  # fmt: skip


def who_for(asked: Asked, before: Sweep | None) -> Chooser:
    """How nodes are chosen: as is said now, else as when the sweep was begun."""
    way = chosen_way(idle=asked.idle, reservation=asked.reservation, whole=asked.whole_fleet)
    if way is None and before is not None:
        return chooser(os.environ, before.whom, before.reservation)
    return chooser(os.environ, way, asked.reservation or "")


def begin(asked: Asked, who: Chooser, into: Path) -> Sweep:
    """Find the fleet, leave out whoever is busy, and plan the waves; UsageError."""
    given: dict[str, Any] = {name: asked.said(name) for name in _AS_GIVEN}
    fleet = resolve(Wish(**given, environ=dict(os.environ)))
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


def say_what(screen: Screen, sweep: Sweep, where: str, who: Chooser, *, resumed: bool) -> None:
    """Print the header, and whom it leaves out."""
    nodes = sum(len(wave.nodes) for wave in sweep.waves)
    asked = {"idle": "idle by Slurm", "reservation": f"of the reservation {who.reservation}"}
    which = f": those {asked[who.whom]}" if who.whom in asked else ", Slurm is not asked"
    rows = [
        ("preflight", f"sweep {sweep.preflight}"),
        ("fleet", f"{fold(sweep.nodes)}  {len(sweep.nodes)} nodes ({sweep.origin})"),
        ("looked at", f"{nodes} of {len(sweep.nodes)}{which}"),
    ]
    if sweep.waves:
        rows += [("waves", _waves(sweep)), ("nights", _nights(sweep, nodes))]
    if resumed:
        done = sum(not wave.open for wave in sweep.waves)
        rows.append(("resumed", f"{done} of {len(sweep.waves)} waves were done before"))
    rows.append(("report", where))
    screen.header(rows)
    screen.left_out(sweep.left_out)


def _waves(sweep: Sweep) -> str:
    ends = f", done by {clock(sweep.ends_s - time.time()):%H:%M}" if sweep.ends_s else ""
    return (
        f"{len(sweep.waves)} of up to {sweep.most} nodes, one after the other, {sweep.tier}, "
        f"up to {sweep.usual_s:g} s each{ends}"
    )


def _nights(sweep: Sweep, nodes: int) -> str:
    nights = nights_to_all(nodes, sweep.most)
    if nights == 1:
        return "every two of these nodes are in one wave"
    return f"every two of these nodes are in one wave after {nights} such nights"
