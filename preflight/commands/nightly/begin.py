"""The options of `preflight sweep`: its own, and those of a run that make sense for many waves."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.fleet.sources import Wish
from preflight.isolated import option_parser
from preflight.sweeping.waves import LEAST, MOST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was typed."""

    told: Mapping[str, str]
    """Options of a run that the sweep reads itself, by name without dashes in front."""
    words: tuple[str, ...]
    """Options that each wave gets as they are."""
    folders: tuple[str, ...]
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
    told = parser.parse_args(argv, argparse.Namespace(words=[], workers=False))
    given = dict(word.partition("=")[::2] for word in told.words)
    for name, why in _NOT_HERE.items():
        if name in given:
            raise UsageError(f"{name} is not for a sweep: {why}; leave it out")
    if not LEAST <= told.wave <= MOST:
        raise UsageError(f"--wave={told.wave}: give a number of nodes, {LEAST} to {MOST}")
    return Asked(
        told={name: value for name, value in given.items() if name.startswith("--preflight-")},
        words=tuple(word for word in told.words if word.partition("=")[0] not in _OURS),
        folders=tuple(told.folder),
        wave=told.wave,
        idle=told.idle,
        reservation=told.reservation,
        whole_fleet=told.whole_fleet,
        until=told.until,
        budget=told.budget,
        into=told.into,
        resume=told.resume,
        plan=told.plan,
    )


def wish(asked: Asked) -> Wish:
    """The fleet that was asked for."""
    return Wish(
        nodes=asked.said("nodes"),
        inventory=asked.said("inventory"),
        exclude=asked.said("exclude"),
        transport=asked.said("transport"),
        python=asked.said("python"),
        env_file=asked.said("env_file"),
        launch=asked.said("launch"),
        interface=asked.said("interface"),
        topology=asked.said("topology"),
        environ=dict(os.environ),
    )


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
