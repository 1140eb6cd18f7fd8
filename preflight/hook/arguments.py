"""Options of `preflight prolog` and `preflight healthcheck`; standard library only."""

from __future__ import annotations

from argparse import ArgumentTypeError
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from preflight.core.command_line import Parser, decimal_number, path_type

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from preflight.hook.hook_values import Occasion

_PROLOG: Final = """\
Check this node and the GPUs of the job that is to start (SLURM_JOB_GPUS),
within 8 s and without any load on the GPUs. Run it as root from a prolog.

  preflight prolog              Slurm's Prolog=: drains if hook.toml sets
                                `enforce`; by default it only logs
  preflight prolog --plain      other schedulers: the exit code is the result

Prints and logs nothing on a ready node; else one line in syslog, and
state_dir/last.json. What it reads, drains and logs: docs/reference/prolog.md"""

_HEALTHCHECK: Final = """\
Check this node with all its GPUs, within 30 s and without any load on the GPUs.
Run it as root from Slurm's HealthCheckProgram= or cron.

  preflight healthcheck --periodic       also save the facts for prologs
  preflight healthcheck --plain --json   show everything that it finds

Prints and logs nothing on a ready node; else one line in syslog, and
state_dir/last.json. What it reads and drains: docs/reference/prolog.md"""


class Options(NamedTuple):
    """The options that were typed."""

    occasion: Occasion
    config: Path | None
    node: str
    plain: bool
    json: bool
    periodic: bool = False
    fail_closed: bool = False
    limit_s: float | None = None
    """The caller ends the hook after this many seconds; None for no limit."""


def option_parser(occasion: Occasion) -> argparse.ArgumentParser:
    """Return the parser of `preflight prolog` or `preflight healthcheck`."""
    parser = Parser(
        prog=f"preflight {occasion}",
        allow_abbrev=False,
        description=_PROLOG if occasion == "prolog" else _HEALTHCHECK,
    )
    parser.add_argument(
        "--config", metavar="FILE", type=path_type,
        help="the hook's configuration (default: /etc/preflight/hook.toml)",
    )  # fmt: skip
    parser.add_argument(
        "--node", default="", metavar="NAME",
        help="this node's name in the inventory (default: SLURMD_NODENAME, else the host name)",
    )  # fmt: skip
    parser.add_argument(
        "--plain", action="store_true",
        help="call no scheduler; exit 0 ready, 1 not ready, 2 unknown",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print what was found, as JSON")
    parser.add_argument(
        "--limit", type=_seconds, metavar="S", dest="limit_s",
        help="the caller ends this after S seconds: refuse a longer budget",
    )  # fmt: skip
    if occasion == "prolog":
        parser.add_argument(
            "--fail-closed", action="store_true",
            help="if preflight itself fails, exit 1 to keep the job from this node",
        )  # fmt: skip
    if occasion == "healthcheck":
        parser.add_argument(
            "--periodic", action="store_true",
            help="save the facts in state_dir for prologs, which have less time",
        )  # fmt: skip
    return parser


def parse_options(words: Sequence[str]) -> Options:
    """Read the words behind `preflight`; SystemExit for --help (0) and for wrong usage (4)."""
    occasion = cast("Occasion", words[0])
    parser = option_parser(occasion)
    options = Options(occasion, **vars(parser.parse_args(list(words[1:]))))
    if options.fail_closed and options.plain:
        parser.error("--fail-closed excludes --plain, which exits 2 when the result is unknown")
    return options


def _seconds(text: str) -> float:
    if not 0 < (number := decimal_number(text)) < inf:
        raise ArgumentTypeError(f"give seconds, more than 0, not {text[:40]!a}")
    return number
