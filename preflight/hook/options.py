"""What may be said to `preflight prolog` and `preflight healthcheck`; standard library only."""

from __future__ import annotations

import argparse
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, NoReturn, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.hook.model import Occasion

USAGE: Final = 4
_PROLOG: Final = """\
Judge this node and the GPUs of the job that is to start (SLURM_JOB_GPUS),
within 8 s and without loading anything. For the prolog of a scheduler, as root.

  preflight prolog              Slurm's Prolog=: drains as hook.toml says, which
                                is not at all until you turn that on
  preflight prolog --plain      other schedulers: tells by its exit code alone

Silent where all is well; else one line in syslog, and state_dir/last.json.
What it reads, drains and logs: docs/prolog.md"""

_HEALTHCHECK: Final = """\
Judge this node with all its GPUs, within 30 s and without loading anything.
For Slurm's HealthCheckProgram= or cron, as root.

  preflight healthcheck --periodic       also keep what it read, for prologs
  preflight healthcheck --plain --json   show all that it finds

Silent where all is well; else one line in syslog, and state_dir/last.json.
What it reads, drains and undrains: docs/prolog.md"""


class Options(NamedTuple):
    """What was typed."""

    occasion: Occasion
    config: Path | None
    node: str
    plain: bool
    json: bool
    periodic: bool
    fail_closed: bool = False
    limit_s: float | None = None
    """After so many seconds the caller ends the hook; None where it does not."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say it in one line; the caller turns the exit into one that drains nobody."""
        self.exit(USAGE, f"{self.prog}: {message}; see: {self.prog} --help\n")


def parsed(words: Sequence[str]) -> Options:
    """Read the words behind `preflight`; SystemExit for --help (0) and for wrong usage (4)."""
    occasion = cast("Literal['prolog', 'healthcheck']", words[0])
    parser = _Parser(
        prog=f"preflight {occasion}",
        allow_abbrev=False,
        description=_PROLOG if occasion == "prolog" else _HEALTHCHECK,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config", metavar="FILE", type=Path,
        help="the hook's configuration (default: /etc/preflight/hook.toml)",
    )  # fmt: skip
    parser.add_argument(
        "--node", default="", metavar="NAME",
        help="this node's name in the inventory (default: SLURMD_NODENAME, else the host's)",
    )  # fmt: skip
    parser.add_argument(
        "--plain", action="store_true",
        help="touch no scheduler; exit 0 healthy, 1 unhealthy, 2 could not judge",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print what was found, as JSON")
    parser.add_argument(
        "--limit", type=_seconds, metavar="S",
        help="whoever starts this ends it after so many seconds: a longer budget is refused",
    )  # fmt: skip
    if occasion == "prolog":
        parser.add_argument(
            "--fail-closed", action="store_true",
            help="where preflight itself fails, keep the job from this node: exit 1",
        )  # fmt: skip
    if occasion == "healthcheck":
        parser.add_argument(
            "--periodic", action="store_true",
            help="keep what was read in state_dir, for prologs that have less time",
        )  # fmt: skip
    told = parser.parse_args(list(words[1:]))
    periodic, closed = getattr(told, "periodic", False), getattr(told, "fail_closed", False)
    plain, json = told.plain, told.json
    if closed and plain:
        parser.error("--fail-closed is not for --plain, whose exit 2 says that nothing was judged")
    return Options(occasion, told.config, told.node, plain, json, periodic, closed, told.limit)


def _seconds(text: str) -> float:
    if not 0 < (number := float(text)) < inf:
        raise ValueError(text)
    return number
