"""`preflight report`: writes any report of a run again, from its folder; `--public` hides names."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from preflight.commands import print_lines, short_names
from preflight.commands.blame import hosts_of, judge_stored
from preflight.commands.nightly.state import WAVE
from preflight.commands.nightly.united import fabric_of_waves
from preflight.core.command_line import path_type
from preflight.core.files import read_regular, typed_path, write_output
from preflight.core.registry import draining_ids
from preflight.core.text import natural
from preflight.errors import UsageError
from preflight.fabric.stored import read_stored
from preflight.facts.model import Facts, Ports
from preflight.facts.node import Reach
from preflight.fleet.nodeset import fold
from preflight.report.document import BlameRow, Report, encode
from preflight.report.events import REPORT, reread
from preflight.report.exports import MODE, junit, metrics, refuse_unread
from preflight.report.fabric_page import fabric_section
from preflight.report.hide import Hider
from preflight.report.outputs import past_runs
from preflight.report.page import page
from preflight.report.secret_names import secrets
from preflight.report.since import RunSummary, nodes_in, report_findings
from preflight.report.terminal import summary, title
from preflight.run.measured import LARGEST
from preflight.verdict import Outcome

_FILE = "measured.json"


class KnownNames(Struct, frozen=True):
    """The parts of a measured.json that hold names; the samples, most of it, are not decoded."""

    reach: dict[str, Reach] = {}
    facts: dict[str, Facts] = {}
    ports: dict[str, Ports] = {}
    port_troubles: dict[str, str] = {}


def known_names_in(folder: Path, report: Report) -> tuple[KnownNames, ...]:
    """Return what is known of every checked node; UsageError where a node is missing.

    Without it a user or a serial number in a sentence could not be recognized.
    """
    documents = tuple(filter(None, map(_read_names, (folder, *wave_folders(folder)))))
    names = {name for document in documents for name in document.reach}
    nodes = frozenset(report.fleet.nodes)
    # "Not run" does not count, as it holds no node's text.
    rows = (row for row in report.verdicts if row.outcome is not Outcome.NOT_RUN)
    subjects = {row.subject for row in rows}
    judged = {name for subject in subjects for name in nodes_in(subject, nodes)}
    unknown = judged - names
    if missing := [name for name in report.fleet.nodes if name in unknown]:
        raise UsageError(
            f"--public cannot hide names that it does not know: the facts of {fold(missing)} are "
            f"not in {folder} (a killed run leaves no {_FILE}, and older sweeps lose their waves, "
            "see --preflight-keep); give a run that ended by itself, or a single wave of a sweep: "
            f"preflight report {folder / 'wave-001'} --public"
        )
    return documents


def wave_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders of a sweep's waves, also of interrupted tries, but no links."""
    for path in sorted(folder.glob("wave-*")):
        if WAVE.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            yield path


def latest_tries(waves: Iterable[Path]) -> list[Path]:
    """Keep the last try of each wave: `wave-003-2` replaces `wave-003`."""
    tries = {
        tuple(path.name.split("-")[1:2]): path
        for path in sorted(waves, key=lambda path: natural(path.name))
    }
    return list(tries.values())


def _read_names(folder: Path) -> KnownNames | None:
    try:
        return msgspec.json.decode(read_regular(folder / _FILE, LARGEST), type=KnownNames)
    except (OSError, ValueError, RecursionError):
        return None


def fabric_of(
    folder: Path, blames: Sequence[BlameRow], hider: Hider | None
) -> Callable[[int], str] | None:
    """Return a function that draws the fabric in at most so many bytes; None without samples.

    All waves of a sweep are drawn together; `blames` are those of its report.
    `hider`: a public page shows only quantiles, in which no node can be recognized.
    """
    if not (folder / "measured.json").is_file():
        waves = latest_tries(wave_folders(folder))
        return fabric_of_waves(waves, blames, hider) if waves else None
    try:
        samples = read_stored(folder)
    except UsageError:
        return None  # a run that measured no pairs
    if not samples.observed.tried:
        return None
    observed, sweep = samples.observed, samples.sweep
    if not (folder / REPORT).is_file():  # a killed run has samples, and perhaps no verdicts
        blames = judge_stored(samples, hosts_of(samples, None)).blames
        blames = hider.hide(blames) if hider else blames
    if hider is not None:
        observed, sweep = hider.hide(observed), None
    return partial(fabric_section, observed, blames, sweep=sweep)


def run(arguments: argparse.Namespace) -> int:
    """Write the formats that were asked for, else the summary; 0, or UsageError (exit 4)."""
    folder: Path = typed_path(arguments.folder)
    report = reread(folder)
    nights = past_runs(folder.resolve())
    hider = None
    if arguments.public:
        hider = Hider(secrets(report, *known_names_in(folder, report), earlier=nights))
    document = report
    if hider:  # the inventory's folders may name the fleet's owner
        document = hider.hide(report)
        origin = document.fleet.origin.rpartition("/")[2]
        document = replace(document, fleet=replace(document.fleet, origin=origin))
    if arguments.prometheus is not None:
        refuse_unread(typed_path(arguments.prometheus))
        write_output(arguments.prometheus, metrics(document, report_findings(document)), MODE)
    if arguments.junit is not None:
        write_output(arguments.junit, junit(document))
    if arguments.html is not None:
        write_output(arguments.html, _page(folder, document, nights, hider).encode())
    if arguments.json:
        sys.stdout.write(encode(document).decode("ascii"))
    files = (arguments.prometheus, arguments.junit, arguments.html)
    if arguments.text or not (arguments.json or any(files)):
        print_lines(lambda width: map(short_names, _lines(document, width)))
    return 0


def _page(folder: Path, report: Report, nights: tuple[RunSummary, ...], hider: Hider | None) -> str:
    earlier_nights = hider.hide(nights) if hider else nights
    fabric = fabric_of(folder, report.blames, hider)
    return page(
        report, report_findings(report), fabric, earlier=earlier_nights, drains=draining_ids()
    )


def _lines(report: Report, width: int) -> list[str]:
    heading = f" {title(report)} ".center(width, "=")
    return [heading, *summary(report, report_findings(report), where="", hint="", width=width)]


_EXAMPLE = """\
examples:
  preflight report preflight-runs/latest
      print the run's summary again
  preflight report preflight-runs/latest --public --html=for-the-vendor.html
      write the page, with hosts, users, serials, UUIDs and addresses numbered
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = _EXAMPLE
    add = parser.add_argument
    add("folder", metavar="RUN_DIR", type=path_type,
        help="a run's folder; for a killed run, "
        "the report holds what was known by then")  # fmt: skip
    add("--html", metavar="FILE", type=path_type, help="the HTML page; - is standard output")
    add("--json", action="store_true", help="print report.json")
    add("--junit", metavar="FILE", type=path_type, help="the verdicts as JUnit XML")
    add("--prometheus", metavar="FILE", type=path_type,
        help="the numbers for node_exporter (*.prom)")  # fmt: skip
    add("--text", action="store_true", help="print the summary (default)")
    add("--public", action="store_true",
        help="number hosts, users, serials, UUIDs and addresses, "
        "consistently everywhere")  # fmt: skip
