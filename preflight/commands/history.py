"""`preflight history`: shows what earlier runs found about a fleet, a node or a GPU."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from preflight import __version__
from preflight.commands import add_json
from preflight.core.command_line import EMPTY, FINE, columns, whole_number
from preflight.core.statistics import FEWEST_NIGHTS, grouped, median, usual_speed
from preflight.core.text import count, did_you_mean, percent, plain_json, wrapped
from preflight.errors import UsageError
from preflight.fleet.nodeset import expand, fold
from preflight.history import reading
from preflight.history.place import VARIABLE, Place, parse_place
from preflight.history.run_record import Changes, GpuPast, NodePast, NodeRecord, PastRun
from preflight.report.terminal import labelled
from preflight.verdict import NOT_FINE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from preflight.history.queries import History
    from preflight.history.run_record import Episode, GpuPlacement, PairCoverage, Trend


def day(seconds: float | None, form: str = "%Y-%m-%d") -> str:
    """Return a date in UTC."""
    try:
        return datetime.fromtimestamp(seconds or 0, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return "an impossible date"


def moment(seconds: float | None) -> str:
    """Return a date and time in UTC."""
    return day(seconds, "%Y-%m-%d %H:%M UTC")


_UNITS = {
    "tflops": "TFLOPS",
    "gflops": "GFLOPS",
    "gbs": "GB/s",
    "gbits": "Gb/s",
    "us": "us",
}
_NO_DECIMALS = 1000
_EFFECT, _SCATTER = 0.05, 0.01
"""The smallest change that is marked here. Chosen: no verdict depends on it."""


class _LatestValue(NamedTuple):
    unit: str
    value: float
    usual: float | None
    """The median of the nights before; None if these are too few."""
    nights: int
    change: float
    """Per cent of speed against that median; negative is worse, also for a time."""
    worse: bool


def trend_lines(trends: Sequence[Trend]) -> Iterator[tuple[str, str]]:
    """Yield one line per measure, with the conditions of its last night."""
    by_measure = grouped((trend.measure, trend) for trend in trends)
    last_s = max((trend.points[-1].started_s for trend in trends), default=0.0)
    for place, (measure, series) in enumerate(by_measure.items()):
        end_s = max(trend.points[-1].started_s for trend in series)
        recent = [trend for trend in series if trend.points[-1].started_s == end_s]
        units = [_latest_value(measure, trend) for trend in recent]
        date = f" on {day(end_s)}" if end_s < last_s else ""
        text = f"{measure.rpartition('_')[0]}{date}: {_trend_line(units, measure, recent[0].under)}"
        yield ("trends" if place == 0 else ""), text


def _trend_line(units: Sequence[_LatestValue], measure: str, under: str) -> str:
    name = _UNITS.get(measure.rpartition("_")[2], "")
    values = [unit.value for unit in units]
    lowest, highest = _trend_words(min(values)), _trend_words(max(values))
    span = lowest if lowest == highest else f"{lowest} to {highest}"
    with_usual = [unit for unit in units if unit.usual is not None]
    if not with_usual:
        nights = max(unit.nights for unit in units)
        return f"{span} {name} ({under}); {nights} before it, {FEWEST_NIGHTS} make a trend"
    worst = min(with_usual, key=lambda unit: unit.change)
    mark = "WORSE: " if worst.worse else ""
    return (
        f"{span} {name} ({under}); {mark}{worst.unit} {_trend_words(worst.value)}, "
        f"{worst.change:+.1f} % of speed against its "
        f"median {_trend_words(worst.usual or 0.0)} of {worst.nights} nights"
    )


def _trend_words(value: float) -> str:
    """Format a number with four significant digits and no power of ten."""
    return f"{value:,.0f}" if abs(value) >= _NO_DECIMALS else f"{value:.4g}"


def _latest_value(measure: str, trend: Trend) -> _LatestValue:
    values = [point.value for point in trend.points]
    latest, earlier = values[-1], values[:-1]
    less_is_more = measure.endswith("_us")

    def speed(value: float) -> float:
        return 1 / value if less_is_more else value

    norm = usual_speed(
        [speed(value) for value in earlier if value > 0], effect=_EFFECT, scatter=_SCATTER
    )
    if norm is None or latest <= 0:
        return _LatestValue(trend.unit, latest, None, len(earlier), 0.0, worse=False)
    latest_speed = speed(latest)
    return _LatestValue(
        trend.unit,
        latest,
        median(earlier),
        norm.nights,
        100 * (latest_speed / norm.middle - 1),
        worse=latest_speed < norm.least,
    )


_RANK = {str(outcome): place for place, outcome in enumerate(NOT_FINE[:5])}
"""The outcomes that are worse than a warning, by severity."""

_MOST_LINES = 12
"""How many findings of one kind are shown; --json has all."""


def document_lines(document: HistoryDocument, width: int) -> list[str]:
    """Lay out the document."""
    if document.last is None:
        advice = "no run is stored here; fill it with: preflight check --history=DIR"
        return wrapped(f"{document.history}: {advice}", first="", indent="  ", width=width)
    pieces: Iterator[tuple[str, str]]
    if document.node is not None:
        pieces = _node_rows(document.node, document.nights)
    elif document.gpu is not None:
        pieces = _gpu_rows(document.gpu)
    else:
        pieces = _fleet_rows(document, document.last)
    return [line for piece in pieces for line in labelled(*piece, width)]


def _fleet_rows(document: HistoryDocument, last: PastRun) -> Iterator[tuple[str, str]]:
    start = f", runs since {day(document.first.started_s)}" if document.first is not None else ""
    yield "history", f"{document.history}{start}"
    runs = document.night
    yield ("last run" if len(runs) == 1 else "last night"), _run_words(runs)
    if last.covered is not None and len(runs) == 1:
        yield "coverage", _coverage_words(last.covered)
    if document.changes is not None:
        yield from _change_rows(document.changes)
    yield from _worst_rows(document.worst or (), document.nights)


def _run_words(runs: Sequence[PastRun]) -> str:
    """Describe one run, or all waves of one night; of a repeated wave the last."""
    runs = tuple({past.fleet: past for past in runs}.values())
    nodes, ready = sum(past.nodes for past in runs), sum(past.ready for past in runs)
    bad = sum(past.not_ready for past in runs)
    names = fold(name for past in runs for name in expand(past.fleet))
    waves = f" in {len(runs)} runs" if len(runs) > 1 else ""
    cause = (
        ", one shared cause is likely: it counts against no node"
        if any(past.systemic for past in runs)
        else ""
    )
    return (
        f"{moment(runs[0].started_s)}, {runs[0].tier}, {nodes:,} node{'s' * (nodes != 1)} "
        f"{names}{waves}: {ready:,} ready, {bad:,} not ready{cause}"
    )


def _coverage_words(row: PairCoverage) -> str:
    pairs = f"{row.pairs_known:,} of {row.pairs:,} pairs measured in its runs, {row.pairs_run:,} "
    leaves = ""
    if row.leaf_pairs:
        leaves = f"; {row.leaf_pairs_known:,} of {row.leaf_pairs:,} leaf pairs"
    return f"{pairs}in the last{leaves}"


def _change_rows(changes: Changes) -> Iterator[tuple[str, str]]:
    if changes.before is None:
        yield "before", "no earlier run checked these nodes: everything is new"
    else:
        yield "before", f"{moment(changes.before.started_s)}"
    groups: tuple[tuple[str, Sequence[Episode]], ...] = (
        ("new", changes.new),
        ("still", changes.still),
        ("recovered", changes.recovered),
        ("not judged", changes.unseen),
    )
    for label, episodes in groups:
        yield from _rows(label, _fold_findings(episodes))
    if not any(episodes for _, episodes in groups):
        yield "changes", "none: nothing was found, before and now"


def _fold_findings(episodes: Sequence[Episode]) -> list[str]:
    """Return one line per finding, the worst first; the same finding on several nodes is one."""
    names_of: dict[tuple[str, str], dict[str, None]] = {}
    for episode in sorted(episodes, key=lambda episode: _RANK.get(episode.outcome, len(_RANK))):
        is_one_node = episode.nodes == (episode.about,)
        text = "" if is_one_node else episode.about, _episode(episode)
        names_of.setdefault(text, {})[episode.about] = None
    return [f"{subject or fold(names)}  {text}" for (subject, text), names in names_of.items()]


def _worst_rows(worst: Sequence[NodeRecord], nights: int) -> Iterator[tuple[str, str]]:
    if not worst:
        yield "worst", f"every node was ready in {nights} nights"
    rows = [f"{record.node}  {_standing(record)}" for record in worst]
    yield from _rows("worst", rows, most=len(rows))


def _standing(record: NodeRecord) -> str:
    if not record.judged:
        return "was not checked in these nights"
    runs = count(record.judged, "run")
    if not record.bad:
        return f"ready in all of {runs}"
    share = percent(record.flaky / record.judged)
    flaky = f", {record.flaky} of them flaky ({share} of its runs)" if record.flaky else ""
    last = f"; last {day(record.last_bad_s)}" if record.last_bad_s is not None else ""
    checks = ", ".join(f"{check} {times}" for check, times in record.checks)
    return f"not ready in {record.bad} of {runs}{flaky}{last}{': ' * bool(checks)}{checks}"


def _node_rows(past: NodePast, nights: int) -> Iterator[tuple[str, str]]:
    record = past.standing
    serial = f"serial {record.serial}" if record.serial else (
        "serial number unknown (most logins may not read it): identified by its name"
    )  # fmt: skip
    yield "node", f"{record.node}, {serial}"
    if past.namesakes:
        numbers = ", ".join(f"serial {name}" if name else "one without" for name in past.namesakes)
        yield "", f"another machine had this name before: {numbers}; not shown here"
    yield "seen", f"{day(past.first_s)} to {day(past.last_s)}"
    yield f"{nights} nights", _standing(record)
    gpus = [f"{gpu.slot}  {gpu.uuid}  {gpu.model}, {_period(gpu)}" for gpu in past.seats]
    yield from _rows("GPUs", gpus, most=len(gpus))
    yield from _episode_rows(past.episodes)
    yield from trend_lines(past.trends)


def _gpu_rows(past: GpuPast) -> Iterator[tuple[str, str]]:
    yield "GPU", f"{past.uuid}, {past.model or 'unknown model'}"
    places = [f"{place.node}, GPU {place.slot}, {_period(place)}" for place in past.seats]
    yield from _rows("was in", places, most=len(places))
    yield from _episode_rows(past.episodes, with_about=True)
    yield from trend_lines(past.trends)


def _episode_rows(
    episodes: Sequence[Episode], *, with_about: bool = False
) -> Iterator[tuple[str, str]]:
    current = (episode for episode in episodes if episode.ended_s is None)
    former = (episode for episode in episodes if episode.ended_s is not None)
    repeats = grouped(((episode.check, episode.about), episode) for episode in former)
    yield from _rows("open", [_episode(episode, with_about=with_about) for episode in current])
    yield from _rows("past", [_repeats(past, with_about=with_about) for past in repeats.values()])
    if not episodes:
        yield "findings", "none in any run"


def _repeats(episodes: Sequence[Episode], *, with_about: bool) -> str:
    """Describe a finding that came and went: how often, and the last time."""
    latest = episodes[0]
    if len(episodes) == 1:
        return _episode(latest, with_about=with_about)
    subject = f"{latest.about}  " if with_about else ""
    runs = sum(episode.nights for episode in episodes)
    first_s = min(episode.first_s for episode in episodes)
    return (
        f"{subject}{latest.check} {latest.outcome}, {len(episodes)} times, {runs} runs "
        f"{day(first_s)} to {day(latest.last_s)}, ok on {day(latest.ended_s)}: {latest.sentence}"
    )


def _episode(episode: Episode, *, with_about: bool = False) -> str:
    subject = f"{episode.about}  " if with_about else ""
    runs = count(episode.nights, "run")
    first, last = day(episode.first_s), day(episode.last_s)
    span = f"on {first}" if first == last else f"{first} to {last}"
    when = f"since {first}" if episode.ended_s is None else f"{span}, ok on {day(episode.ended_s)}"
    return f"{subject}{episode.check} {episode.outcome}, {runs} {when}: {episode.sentence}"


def _period(placement: GpuPlacement) -> str:
    end = "" if placement.until_s is None else f" until {day(placement.until_s)}"
    return f"since {day(placement.since_s)}{end}"


def _rows(label: str, rows: Iterable[str], most: int = _MOST_LINES) -> Iterator[tuple[str, str]]:
    all_rows = list(rows)
    for place, row in enumerate(all_rows[:most]):
        yield (label if place == 0 else ""), row
    if len(all_rows) > most:
        yield "", f"and {len(all_rows) - most} more: see --json"


MOST_NIGHTS = 3660
_EXAMPLES = """\
examples:
  preflight history --history=/srv/nightly    what changed since last night, and
                                              which nodes fail most often
  preflight history gpu041 --history=...      one node
  preflight history --worst --nights=90 ...   repeat offenders
  preflight history --gpu=GPU-4f1c... ...     one GPU, in all nodes that had it

DIR is the folder that `preflight check --history=DIR` filled. With the variable
PREFLIGHT_HISTORY=DIR neither command needs the option. Exit code: 0 shown, 4
wrong usage or an unreadable history, 5 no run is stored there.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("node", metavar="NODE", nargs="?", help="a node's name in the runs")
    add("--gpu", metavar="UUID", help="one GPU, by its UUID in nvidia-smi -L")
    add("--worst", action="store_true", help="the nodes not ready most often")
    add("--history", metavar="DIR", help="folder, sqlite:///FILE or postgresql://... "
        "(default: $PREFLIGHT_HISTORY)")  # fmt: skip
    add("--nights", metavar="N", type=whole_number, default=30,
        help="how many nights before the last run to count (default: 30)")  # fmt: skip
    add_json(parser)


SCHEMA = 1
"""Raised by a change that an older reader would misread. Additions do not raise it."""


class HistoryDocument(Struct, frozen=True, kw_only=True):
    """What `preflight history --json` prints; parts that were not asked for are null."""

    schema: int = SCHEMA
    preflight: str
    history: str
    """The file or database that was read."""
    nights: int
    """How many nights before the last run count for `worst`, standings and trends."""
    last: PastRun | None
    """The last run; null if none is stored."""
    night: tuple[PastRun, ...] = ()
    """The runs of the last night, including the last one: a sweep has one per wave."""
    first: PastRun | None = None
    changes: Changes | None = None
    worst: tuple[NodeRecord, ...] | None = None
    node: NodePast | None = None
    gpu: GpuPast | None = None


_WORST_LISTED = 20
_WORST_IN_SUMMARY = 5


def run(arguments: argparse.Namespace) -> int:
    """Print what is asked for; 0 shown, 5 no run is stored. UsageError (exit 4) otherwise."""
    _refuse_usage(arguments)
    place = parse_place(arguments.history or os.environ.get(VARIABLE, ""), Path.cwd())
    try:
        with reading(place) as history:
            document = _document(arguments, history, _path_words(place))
        lines = "".join(f"{line}\n" for line in document_lines(document, columns()))
        answer = plain_json(document) if arguments.json else lines
    # SQLite holds any type in any column.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"the history {place.words} holds values that no run wrote ({error}); move it away to "
            "start again, or give another: --history=DIR"
        ) from error
    sys.stdout.write(answer)
    return FINE if document.last is not None else EMPTY


def _path_words(place: Place) -> str:
    """Return the history's path, relative to the working folder where possible."""
    file, folder = place.file, Path.cwd()
    inside = file is not None and file.is_relative_to(folder)
    return str(file.relative_to(folder)) if file is not None and inside else place.words


def _refuse_usage(arguments: argparse.Namespace) -> None:
    if not (arguments.history or os.environ.get(VARIABLE)):
        raise UsageError(
            "no history is given: type preflight history --history=DIR with the folder that "
            f"preflight check --history=DIR filled (or set {VARIABLE})"
        )
    choices = [bool(arguments.node), arguments.gpu is not None, arguments.worst]
    if sum(choices) > 1:
        raise UsageError("give only one of NODE, --gpu and --worst")
    if not 1 <= arguments.nights <= MOST_NIGHTS:
        raise UsageError(f"--nights={arguments.nights}: give a number, 1 to {MOST_NIGHTS}")


def _document(arguments: argparse.Namespace, history: History, words: str) -> HistoryDocument:
    last = history.last_run()
    nights = arguments.nights
    base = HistoryDocument(preflight=__version__, history=words, nights=nights, last=last)
    if last is None:
        return base
    base = replace(base, night=history.night(last))
    if arguments.node:
        node = history.node(arguments.node, nights)
        if node is None:
            hint = did_you_mean(arguments.node, history.names())
            raise UsageError(f"no run in {words} had a node {arguments.node[:80]!a}{hint}")
        return replace(base, node=node)
    if arguments.gpu is not None:
        gpu = history.gpu(arguments.gpu, nights)
        if gpu is None:
            raise UsageError(
                f"no run in {words} had a GPU {arguments.gpu[:80]!a}: give its UUID, as "
                "`preflight history NODE` and nvidia-smi -L show it"
            )
        return replace(base, gpu=gpu)
    worst = history.worst(nights, _WORST_LISTED if arguments.worst else _WORST_IN_SUMMARY)
    if arguments.worst:
        return replace(base, worst=worst)
    return replace(base, first=history.first_run(), changes=history.changes(last), worst=worst)
