"""`preflight nightly`: checks a whole fleet by night, a wave of idle nodes at a time.

It is started isolated, like `preflight check`: `python -I -m` this module.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from preflight import __version__
from preflight.commands import EXIT_CODES, remark
from preflight.commands.check import (
    PrintedReport,
    add_report_json,
    option_parser,
    shorten_names,
    until_interrupted,
)
from preflight.commands.nightly.choice import (
    LEAST,
    MOST,
    Chooser,
    chooser,
    nights_for_all_pairs,
    plan_waves,
)
from preflight.commands.nightly.conclude import conclude, outputs_of
from preflight.commands.nightly.state import (
    BEGIN_NEW,
    TOO_OLD_S,
    NightlyRun,
    Screen,
    WaveState,
    clock,
    former_nights,
    latest_nightly_run,
    waves_of,
)
from preflight.commands.nightly.wave_runner import LEAVE_S, WaveRunner, locked
from preflight.core.command_line import EMPTY, UNCLEAR, USAGE, Interrupts, path_type, whole_number
from preflight.core.files import typed_path
from preflight.core.text import excerpt, plain_json
from preflight.errors import PreflightError, UsageError
from preflight.fleet.nodeset import fold
from preflight.fleet.sources import FleetRequest, resolve
from preflight.report.outputs import KEEP, new_folder
from preflight.run.expected_verdicts import BUDGET_S
from preflight.session.options import parse_span, refuse_out_of_range

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from preflight.check import Tier
    from preflight.commands.check import _Parser
    from preflight.commands.nightly.choice import Source


def main(argv: Sequence[str]) -> int:
    """Check the fleet in waves; the exit codes are those of a run, over all waves."""
    try:
        return _run_or_plan(read_words(argv))
    except PreflightError as error:
        remark(str(error))
        return USAGE if isinstance(error, UsageError) else UNCLEAR


def _run_or_plan(arguments: NightlyArguments) -> int:
    ends = typed_end(arguments.until, arguments.budget, datetime.now().astimezone())
    into = Path.cwd() / typed_path(arguments.into)
    if arguments.plan:
        return _show_plan(arguments, ends, into)
    if not arguments.json:
        return _run(arguments, ends, into, None)
    report = PrintedReport()
    return report.print(_run(arguments, ends, into, report))


def _run(
    arguments: NightlyArguments, ends: datetime | None, into: Path, report: PrintedReport | None
) -> int:
    with locked(into, wait_s=2 * LEAVE_S if arguments.resume else 0.0) as lock:
        past = interrupted_nightly_run(arguments, into) if arguments.resume else None
        choice = chooser_for(arguments, past[1] if past else None)
        folder, nightly = past or (new_folder(into, time.time()), begin(arguments, choice, into))
        nightly = replace(nightly, ends_s=end_of(ends, nightly, choice))
        outputs = outputs_of(folder, nightly)
        outputs.refuse_unusable()
        if report:
            report.folder = folder
        former = former_nights(into, except_id=nightly.sweep)
        screen = Screen()
        print_header(screen, nightly, outputs.folder_words, choice, resumed=past is not None)
        if not nightly.waves:
            screen.line("nothing to check: no node is idle")
            return EMPTY
        runner = WaveRunner(folder, nightly, choice, screen, lock)
        interrupted = False
        try:
            with Interrupts():
                runner.run(former)
        except KeyboardInterrupt:
            interrupted = True
        if runner.trouble:
            screen.labelled("stopped", runner.trouble)
        return conclude(
            folder, runner.nightly, former, screen,
            stopped=_why_stopped(runner, interrupted=interrupted), interrupted=interrupted,
        )  # fmt: skip


def _why_stopped(runner: WaveRunner, *, interrupted: bool) -> str:
    if interrupted:
        return "the nightly run was interrupted"
    if runner.time_up:
        return "the time was up"
    return f"the nightly run stopped: {excerpt(runner.trouble, 80)}" if runner.trouble else ""


def _show_plan(arguments: NightlyArguments, ends: datetime | None, into: Path) -> int:
    """Show tonight's waves; ask Slurm, but no node."""
    choice = chooser_for(arguments, None)
    nightly = begin(arguments, choice, into)
    nightly = replace(nightly, ends_s=end_of(ends, nightly, choice))
    if arguments.json:
        sys.stdout.write(plain_json(nightly))
        return 0
    screen = Screen()
    folder = new_folder(into, time.time())
    print_header(screen, nightly, outputs_of(folder, nightly).folder_words, choice, resumed=False)
    for number, wave in enumerate(nightly.waves, 1):
        label = f"wave {number}/{len(nightly.waves)}"
        screen.labelled(label, f"{fold(wave.nodes)}  {len(wave.nodes)}")
    return 0


WAVE = 16
"""Default number of nodes at once: a run measures every pair of this many."""

INTO = "preflight-nightly"

_NAMES_ALL = "a nightly run never stops at a finding, it names them all"
_UNUSABLE = {
    "--preflight-report": "a nightly run writes its own folder: --into=DIR",
    "--preflight-fail-fast": _NAMES_ALL,
    "--preflight-need": "a nightly run starts no job",
    "--preflight-replay": "a nightly run measures",
    **dict.fromkeys(("--exitfirst", "-x", "--maxfail"), _NAMES_ALL),
    **dict.fromkeys(("--collect-only", "--co"), "see its waves with --plan"),
    "--junitxml": "each wave would overwrite it: see the waves' folders",
}
_PER_WAVE = (
    *("--preflight-nodes", "--preflight-exclude", "--preflight-tier", "--preflight-budget"),
    *("--preflight-prometheus", "--preflight-exclude-file", "--preflight-keep"),
)
"""Options that the nightly run itself sets for each wave."""

_ALIASES = {"--preflight-budget": "--wave-budget"}
"""Options of a run whose usual name means something else here."""

_EXAMPLES = """\
examples:
  preflight nightly -i fleet.toml
  preflight nightly -i fleet.toml --until=06:00 --resume
  preflight nightly -i fleet.toml --reservation=nightly --wave=32
"""


_FLEET_OPTIONS = ("nodes", "inventory", "exclude", "transport", "python", "env_file", "launch",
             "interface", "topology")  # fmt: skip
"""A run's options that describe the fleet."""


class NightlyArguments(argparse.Namespace):
    """The typed options."""

    words: tuple[str, ...]
    """Options that each wave gets unchanged."""
    options: Mapping[str, str]
    """Options of a run that the nightly run reads itself, by name including the dashes."""
    folder: list[str]
    wave: int
    source: Source | None
    reservation: str | None
    until: str | None
    budget: str | None
    into: str
    resume: bool
    plan: bool
    json: bool

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of the site's own checks."""
        return tuple(self.folder)

    @property
    def names_a_fleet(self) -> bool:
        """Whether the options say more than `--resume`."""
        return bool(self.words or self.options or self.folders)

    def option(self, name: str) -> str | None:
        """Return the value of `--preflight-NAME`; None if it was not given."""
        return self.options.get(f"--preflight-{name.replace('_', '-')}")

    def number(self, name: str, usual: float) -> float:
        """Return the number of `--preflight-NAME`, which the parser has read; UsageError."""
        number = float(self.option(name) or usual)
        refuse_out_of_range(name, number)
        return number


def parser() -> _Parser:
    """Return the parser of this verb, which imports pytest."""
    parser = option_parser(
        "preflight nightly",
        "Check a whole fleet in waves of idle nodes, each as deep as the night allows:\n"
        "for cron and timers. Nodes in use are left out and named.",
        declare=_add_options,
        aliases=_ALIASES,
    )
    parser.usage = "preflight nightly [NODES ...] [options]"
    parser.epilog = f"{_EXAMPLES}\n{EXIT_CODES}"
    for action in parser._actions:  # noqa: SLF001  argparse has no other way
        name = getattr(action, "pytest_name", "")
        if {name, *action.option_strings} & {*_UNUSABLE}:
            action.help = argparse.SUPPRESS
        elif name == "--preflight-budget":
            action.help = "the most time for one wave (default by tier: 8, 60, 300, 3600)"
    return parser


def read_words(argv: Sequence[str]) -> NightlyArguments:
    """Read the command line; wrong usage ends here, with exit 4."""
    arguments = parser().read(argv, NightlyArguments())
    values = dict(word.partition("=")[::2] for word in arguments.words)
    for name, reason in _UNUSABLE.items():
        if name in values:
            raise UsageError(f"{name} is not for a nightly run: {reason}; leave it out")
    if not LEAST <= arguments.wave <= MOST:
        raise UsageError(f"--wave={arguments.wave}: give a number of nodes, {LEAST} to {MOST}")
    arguments.options = {
        name: value for name, value in values.items() if name.startswith("--preflight-")
    }
    words = arguments.words
    arguments.words = tuple(word for word in words if word.partition("=")[0] not in _PER_WAVE)
    return arguments


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_report_json(parser)
    add = parser.add_argument
    add("--wave", metavar="K", type=whole_number, default=WAVE,
        help=f"nodes at once, {LEAST} to {MOST} (default: {WAVE}; up to 16, all pairs of a wave "
        "are measured)")  # fmt: skip
    add_one = parser.add_mutually_exclusive_group().add_argument
    add_one("--idle", dest="source", action="store_const", const="idle",
        help="only nodes that Slurm calls idle (default if sinfo is found); a node that gets a job "
        "meanwhile is released within half a minute")  # fmt: skip
    add_one("--reservation", metavar="NAME", help="only nodes of this Slurm reservation")
    add_one("--whole-fleet", dest="source", action="store_const", const="all",
        help="do not ask Slurm (default without sinfo); "
        "GPUs in use are skipped all the same")  # fmt: skip
    add("--until", metavar="TIME", help="end by this time, as in 06:00")
    add("--budget", metavar="TIME", help="end after this long, as in 5h or 90m")
    add("--resume", action="store_true",
        help="continue the latest nightly run if it was interrupted; else begin one")  # fmt: skip
    add("--plan", action="store_true", help="show the waves and exit; contact no node")
    add("--into", metavar="DIR", default=INTO, type=lambda text: str(path_type(text)),
        help=f"folder for nightly runs and their lock (default: {INTO})")  # fmt: skip


_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})")

LONGEST_S, SHORTEST_S = 30 * 86400, 60


def typed_end(until: str | None, budget: str | None, now: datetime) -> datetime | None:
    """Return when the nightly run must end, the earlier of `--until` and `--budget`; UsageError.

    `now` has the operator's time zone.
    """
    ends = [_parse_until(until, now)] if until is not None else []
    if budget is not None:
        seconds = parse_span(budget.strip()) or 0.0
        if not SHORTEST_S <= seconds <= LONGEST_S:
            give = "give 1 minute to 30 days, as in 90m, 5h or 1.5h"
            raise UsageError(f"--budget={budget[:40]!a}: {give}")
        ends.append(now + timedelta(seconds=seconds))
    return min(ends, default=None)


def _parse_until(text: str, now: datetime) -> datetime:
    """Return the next time of that clock time; a date may be given: 2026-11-23T06:00."""
    unreadable = UsageError(f"--until={text[:40]!a}: give a time as in 06:00, or 2026-11-23T06:00")
    match = _TIME.fullmatch(text.strip())
    try:
        if match is None:
            end = datetime.fromisoformat(text.strip())
            end = end if end.tzinfo else end.replace(tzinfo=now.tzinfo)
        else:
            end = now.replace(hour=int(match[1]), minute=int(match[2]), second=0, microsecond=0)
            end += timedelta(days=end <= now)
        seconds_left = (end - now).total_seconds()
    except (ValueError, OverflowError) as error:
        raise unreadable from error
    if seconds_left <= 0:
        raise UsageError(f"--until={text[:40]!a} has passed: give a later time")
    if seconds_left > LONGEST_S:
        raise UsageError(f"--until={text[:40]!a}: give a time in at most 30 days")
    return end


def chooser_for(args: NightlyArguments, past: NightlyRun | None) -> Chooser:
    """Return how nodes are chosen: by the options, else as when the nightly run began."""
    source = args.source if args.reservation is None else "reservation"
    if source is None and past is not None:
        return chooser(os.environ, past.source, past.reservation)
    return chooser(os.environ, source, args.reservation or "")


def begin(args: NightlyArguments, choice: Chooser, into: Path) -> NightlyRun:
    """Find the fleet, leave out busy nodes, and plan the waves; UsageError."""
    options: dict[str, Any] = {name: args.option(name) for name in _FLEET_OPTIONS}
    fleet = resolve(FleetRequest(**options, environ=dict(os.environ)))
    if fleet.origin == "this machine":
        raise UsageError(
            "no fleet is given: give --inventory=FILE or --preflight-nodes=LIST; "
            "to check this machine: preflight check"
        )
    names = tuple(host.name for host in fleet.hosts)
    left_out = choice.left_out(names)
    nodes = [name for name in names if name not in left_out]
    waves = plan_waves(nodes, fleet.leaves, args.wave, waves_of(former_nights(into)))
    tier = cast("Tier", args.option("tier") or "deep")
    return NightlyRun(
        preflight=__version__,
        sweep=secrets.token_hex(16),
        started_s=time.time(),
        words=args.words,
        cwd=str(Path.cwd()),
        folders=args.folders,
        tier=tier,
        usual_s=args.number("budget", BUDGET_S[tier]),
        most=args.wave,
        source=choice.source,
        reservation=choice.reservation,
        strict="--preflight-strict" in args.options,
        metrics=_path_option(args, "prometheus"),
        exclude_file=_path_option(args, "exclude_file"),
        keep=int(args.number("keep", KEEP)),
        nodes=names,
        origin=fleet.origin,
        leaves=fleet.leaves,
        topology=fleet.topology,
        left_out=left_out,
        waves=tuple(WaveState(nodes=wave) for wave in waves),
    )


def _path_option(arguments: NightlyArguments, option: str) -> str:
    name = arguments.option(option)
    if name == "":
        raise UsageError(f"--preflight-{option.replace('_', '-')} is empty: give a path")
    return str(Path.cwd() / typed_path(name)) if name else ""


def interrupted_nightly_run(args: NightlyArguments, into: Path) -> tuple[Path, NightlyRun] | None:
    """Return the run to continue; None to begin a new one. UsageError if neither is possible."""
    try:
        run = latest_nightly_run(into)
    except UsageError as error:
        if not args.names_a_fleet:
            raise
        remark(str(error).replace(BEGIN_NEW, "so a new nightly run begins"))
        return None
    if (
        run is None
        or run[1].finished
        or time.time() - max(run[1].started_s, run[1].written_s) > TOO_OLD_S
    ):
        if args.names_a_fleet:
            return None
        raise UsageError(
            f"--resume: no nightly run in {args.into} was interrupted in the last 12 h; to begin, "
            "give --inventory=FILE"
        )
    folder, nightly = run
    if args.names_a_fleet and (args.words, args.folders) != (nightly.words, nightly.folders):
        raise UsageError(
            f"--resume: the nightly run {folder.name} has other options: repeat those, or give "
            "--resume alone, or leave it out to begin a new nightly run"
        )
    waves = tuple(
        replace(wave, stand="waiting") if wave.stand == "broken off" else wave
        for wave in nightly.waves
    )
    return folder, replace(nightly, waves=waves)


def end_of(ends: datetime | None, nightly: NightlyRun, choice: Chooser) -> float | None:
    """Return when the run must end: by the options, else as when it began, or the reservation."""
    reservation = choice.current_reservation()
    times = [reservation.ends.timestamp()] if reservation and reservation.ends else []
    if ends is not None:
        times.append(ends.timestamp())
    elif nightly.ends_s is not None:
        if nightly.ends_s <= time.time():
            raise UsageError(
                "--resume: the nightly run's time has passed: give a later --until=TIME"
            )
        times.append(nightly.ends_s)
    return min(times, default=None)


def print_header(
    screen: Screen, nightly: NightlyRun, report_words: str, choice: Chooser, *, resumed: bool
) -> None:
    """Print the header, and the nodes that are left out."""
    nodes = sum(len(wave.nodes) for wave in nightly.waves)
    words = {"idle": "idle by Slurm", "reservation": f"of the reservation {choice.reservation}"}
    origin = f": those {words[choice.source]}" if choice.source in words else ", Slurm is not asked"
    rows = [
        ("preflight", f"nightly {nightly.preflight}"),
        ("fleet", f"{fold(nightly.nodes)}  {len(nightly.nodes)} nodes ({nightly.origin})"),
        ("checked", f"{nodes} of {len(nightly.nodes)}{origin}"),
    ]
    if nightly.waves:
        rows += [("waves", _wave_words(nightly)), ("nights", _night_words(nightly, nodes))]
    if resumed:
        number = sum(not wave.open for wave in nightly.waves)
        rows.append(("resumed", f"{number} of {len(nightly.waves)} waves are done already"))
    rows.append(("report", report_words))
    for label, text in rows:
        screen.labelled(label, text)
    screen.line()
    screen.show_left_out(nightly.left_out)


def _wave_words(nightly: NightlyRun) -> str:
    ends = f", until {clock(nightly.ends_s - time.time()):%H:%M}" if nightly.ends_s else ""
    return (
        f"{len(nightly.waves)} of up to {nightly.most} nodes, one after the other, {nightly.tier}, "
        f"up to {nightly.usual_s:g} s each{ends}"
    )


def _night_words(nightly: NightlyRun, nodes: int) -> str:
    nights = nights_for_all_pairs(nodes, nightly.most)
    span = f" after {nights} such nights" if nights > 1 else ""
    return f"every two of these nodes are in one wave{span}"


if __name__ == "__main__":
    shorten_names(_ALIASES)
    sys.exit(until_interrupted(lambda: main(sys.argv[1:])))
