"""The summary of a run on the terminal: findings, ready nodes, coverage, counts, exit code."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from preflight.check import FLEET
from preflight.core.command_line import EMPTY
from preflight.core.statistics import grouped
from preflight.core.text import (
    count,
    cut_list,
    one_line,
    percent,
    printable,
    size,
    time_us,
    wrapped,
)
from preflight.fleet.nodeset import fold
from preflight.report.findings import COUNTED, Finding, fold_reasons
from preflight.report.header import override_rows
from preflight.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from preflight.fabric.decoding.sensitivity import SensitivityRow, SensitivitySizeRow
    from preflight.fleet.model import Fleet
    from preflight.report.document import CoverageRow, FleetRow, Report
    from preflight.report.ready import Readiness


_OUTCOME_WORDS = {Outcome.UNKNOWN: "UNKN", Outcome.BROKEN: "BROKE"}
_UNJUDGED = "could not judge everything"
_INDENT = " " * 7
_MOST_NAMED = 6
_WIDEST, _LONGEST_SUBJECT, _SHORTEST_SENTENCE = 80, 28, 20
"""Columns of a line that is shown as soon as a finding is known, and of its parts."""
_REASONS = 4
"""The most reasons shown for verdicts that were not run: those of a stopped run first, then the
most frequent."""

_ALWAYS = (Outcome.OK, Outcome.FAIL, Outcome.MISSING)
"""Counts that are printed even at 0: `missing` at 0 says that all the others are complete."""


def finding_line(finding: Finding, nodes: Collection[str], width: int) -> str:
    """One line for a finding as soon as it is known; the summary has the whole of it."""
    subject = _subjects(finding.subjects, nodes)
    if len(subject) > _LONGEST_SUBJECT and len(finding.subjects) > 1:
        noun = "node" if all(name in nodes for name in finding.subjects) else "subject"
        subject = count(len(finding.subjects), noun)
    start = f"{_outcome_word(finding):<6} {subject}  {finding.check}: "
    room = max(min(width, _WIDEST) - len(start), _SHORTEST_SENTENCE)
    return start + one_line(finding.sentence, room)


def title(report: Report, *, unsaved: bool = False) -> str:
    """The summary's headline: "ready", or how many nodes are not.

    `unsaved`: only writing some files failed.
    """
    not_ready = len(report.fleet.not_ready)
    if report.interrupted:
        return "interrupted"
    if report.exit == EMPTY or not report.verdicts:
        return "nothing to check"
    if not_ready:
        return f"{not_ready} of {len(report.fleet.nodes)} nodes not ready"
    of_fleet = (row for row in report.verdicts if row.subject == FLEET)
    if any(row.makes_not_ready and not (row.culprits or row.blame) for row in of_fleet):
        return "the fleet as a whole is not ready"
    if report.fleet.apart:
        return "all nodes ready, but not every pair of them"
    words = "everything was judged, but not saved where it belongs" if unsaved else _UNJUDGED
    return "ready" if report.exit == 0 else words


def summary(
    report: Report,
    findings: Sequence[Finding],
    *,
    where: str,
    page: str = "",
    hint: str,
    width: int,
) -> list[str]:
    """Lay out findings, node lists, counts and the exit code in plain lines."""
    lines: list[str] = []
    for finding in findings:
        lines += finding_lines(finding, report.fleet.nodes, width)
    for note in report.suspicions:
        lines += wrapped(note, first="note   ", indent=_INDENT, width=width)
    if findings:
        lines.append("")
    lines += _node_lines(report, width)
    lines += _not_run_lines(report, width)
    extent = [row for row in extent_rows(report) if report.exit != EMPTY or row[0] != "coverage"]
    lines += [line for label, words in extent for line in labelled(label, words, width)]
    lines += labelled(
        "verdicts",
        f"{count_words(report.counts)}; {report.seconds:.1f} s, exit {report.exit}",
        width,
    )
    lines += labelled("report", where, width) if where else []
    lines += labelled("page", page, width) if page else []
    if findings:
        lines.append(f"why        preflight list-checks {findings[0].check}")
    return lines + (labelled("next", hint, width) if hint else [])


def labelled(label: str, words: str, width: int) -> list[str]:
    """Lay out a text beside its label."""
    return wrapped(words, first=f"{label:<11}", indent=" " * 11, width=width)


def extent_rows(report: Report) -> list[tuple[str, str]]:
    """The waivers, how much of the fabric was measured, and what could have been missed."""
    missed = missed_words(report.sensitivity)
    rows = [*override_rows(report.overrides), ("coverage", coverage_words(report))]
    return [*rows, ("missed", missed)] if missed else rows


def finding_lines(finding: Finding, nodes: Collection[str], width: int) -> list[str]:
    """Lay out one finding: its subjects, its sentence, and what to do."""
    subject = _subjects(finding.subjects, nodes)
    also = f"  (also {', '.join(finding.also)})" if finding.also else ""
    head = f"{subject}  {finding.check}{also}".lstrip()
    lines = wrapped(head, first=f"{_outcome_word(finding):<6} ", indent=_INDENT, width=width)
    lines += wrapped(finding.sentence, first=_INDENT, indent=_INDENT, width=width)
    if finding.advice and finding.outcome is not Outcome.WAIVED:
        first, indent = f"{_INDENT}do: ", f"{_INDENT}    "
        lines += wrapped(finding.advice, first=first, indent=indent, width=width)
    return lines


def _outcome_word(finding: Finding) -> str:
    return _OUTCOME_WORDS.get(finding.outcome, finding.outcome.upper())


def _subjects(subjects: Sequence[str], nodes: Collection[str]) -> str:
    """Fold node names; leave pairs and sets as they are."""
    names = [name for name in subjects if name in nodes]
    others = [printable(name) for name in subjects if name not in names]
    return ", ".join(([fold(names)] if names else []) + cut_list(others, _MOST_NAMED))


def _node_lines(report: Report, width: int) -> list[str]:
    fleet = report.fleet
    rows = []
    if fleet.ready:
        rows.append(("ready", _share_words(fleet, fleet.ready)))
    if fleet.not_ready:
        rows.append(("not ready", f"{fleet.exclude}  --exclude={fleet.exclude}"))
    if unjudged := [name for name in fleet.unjudged if name not in fleet.left_out]:
        incomplete = "no failure found, but some checks did not run"
        reason = "no selected check applies" if report.exit == EMPTY else incomplete
        rows.append(("not judged", f"{_share_words(fleet, unjudged)}: {reason}"))
    by_reason = grouped((reason, name) for name, reason in fleet.left_out.items())
    for reason, names in by_reason.items():
        rows.append(("left out", f"{_share_words(fleet, names)} not checked: {reason}"))
    lines = [line for label, words in rows for line in labelled(label, words, width)]
    return lines + apart_lines(fleet.apart, width)


def apart_lines(apart: Iterable[tuple[str, str]], width: int) -> list[str]:
    """Name the pairs of which only one may be in a job."""
    rows = (f"{a} and {b} must not be in one job" for a, b in apart)
    return [line for row in rows for line in labelled("apart", row, width)]


def _share_words(fleet: FleetRow, names: Sequence[str]) -> str:
    return f"{fold(names)}  {len(names)} of {len(fleet.nodes)}"


def _not_run_lines(report: Report, width: int) -> list[str]:
    """Why verdicts were not reached: what was not judged must not look like a pass."""
    not_run = [verdict for verdict in report.verdicts if verdict.outcome is Outcome.NOT_RUN]
    stopped: dict[str, Counter[str]] = {}
    other: dict[str, Counter[str]] = {}
    for verdict in not_run:
        reasons = stopped if verdict.evidence.get("stopped") is True else other
        subject = verdict.check.partition(".")[0]
        reasons.setdefault(verdict.sentence, Counter())[subject] += 1
    nodes = dict.fromkeys(report.fleet.nodes)
    ranked = [
        row
        for group in (stopped, other)
        for row in sorted(fold_reasons(group, nodes).items(), key=lambda row: -row[1].total())
    ]
    rows = [f"{checks.total()} x {reason}" for reason, checks in ranked[:_REASONS]]
    if remaining := ranked[_REASONS:]:
        checks = sum((checks for _, checks in remaining), Counter[str]())
        by_subject = ", ".join(f"{number} {subject}" for subject, number in checks.most_common())
        words = "another reason" if len(remaining) == 1 else f"{len(remaining)} other reasons"
        rows.append(f"{checks.total()} x for {words}, in report.json: {by_subject}")
    return [
        line
        for row in rows
        for line in wrapped(row, first="not run    ", indent=" " * 15, width=width)
    ]


def count_words(counts: Mapping[str, int]) -> str:
    """How many verdicts have each outcome: "228 ok, 0 failed, 66 not run, 0 missing"."""
    outcomes = [outcome for outcome in COUNTED if counts.get(outcome, 0) or outcome in _ALWAYS]
    return ", ".join(f"{counts.get(outcome, 0):,} {COUNTED[outcome]}" for outcome in outcomes)


NOTHING_APPLIES = (
    "no selected check applies here, for the reasons above: select others by --preflight-checks, "
    "or say what the nodes should have by --preflight-inventory=fleet.toml"
)
"""What to type after a run that reached no verdict."""

_PARTNERS = 2
"""Two ready partners are enough to distinguish a node's fault from its path's."""


def next_command(
    fleet: Fleet,
    nodes: Readiness,
    *,
    by_pairs: bool,
    short_of_s: float | None = None,
) -> str:
    """What to type next, if that is clear; empty if all nodes are ready.

    `by_pairs`: the sweep blamed nodes, which need ready partners to be checked again.
    `short_of_s`: the budget, if only its end kept nodes from being judged.
    """
    failing = nodes.not_ready
    if fleet.origin == "this machine":
        return "to check a fleet: preflight check 'gpu[001-064]'"
    longer = f"--preflight-budget={2 * short_of_s:.0f}" if short_of_s else ""
    if not failing:
        return f"to judge {fold(nodes.unjudged)}: {longer}" if nodes.unjudged and longer else ""
    if nodes.unjudged and not fleet.ranks:
        advice = longer or "--preflight-fail-fast=never"
        return f"to judge the others: add --preflight-exclude='{fold(failing)}', or {advice}"
    partners = nodes.ready[:_PARTNERS] if by_pairs else ()
    if len(failing) + len(partners) == len(fleet.hosts):
        return "to check again: the same command"
    names = fold((*failing, *partners))
    selection = f"these beside {fold(partners)}, ready" if partners else "these alone"
    if fleet.ranks:
        return f"to check {selection}: torchrun on them, or --preflight-nodes='{names}' over SSH"
    return f"to check {selection} again: add --preflight-nodes='{names}'"


def missed_words(rows: Sequence[SensitivityRow]) -> str:
    """What would have been seen on the least tested rail, what could have been missed, and why.

    Empty if nothing was measured.
    """
    if not rows:
        return ""
    row = rows[0]
    rail = f"on rail {row.rail} of {row.node}, the least tested,"
    slower = "" if row.slower is None else f"a loss of {percent(row.slower)} of bandwidth"
    if row.one_in is None or row.every_s is None:
        if slower:
            return f"{rail} {slower} would have been seen (99 % sure), spikes not: {_no_rate(row)}"
        return (
            "too few healthy pairs to compare with: spikes and small losses of bandwidth may have "
            "been missed; only failures and expected minimums were judged (more nodes show more)"
        )
    loss = f", and {slower}" if slower else ""
    return (
        f"{rail} a spike on 1 in {two_digits(row.one_in):,} operations{loss} would have been "
        f"seen (99 % sure); an event rarer than one in {row.every_s:.2g} s of load would not"
        f"{_size_words(row)}: {_LONGER}"
    )


_LONGER = "to see more, measure longer: --preflight-tier=deep or --preflight-catch-rate=RATE"


def _no_rate(row: SensitivityRow) -> str:
    """Why no rate of spikes would have been found, and what to type."""
    if row.events is None:
        return "the others had too many; run when the nodes are less busy"
    needed = f"{count(row.events, 'spike')} needed, too many for {row.loaded_s:.2g} s of load"
    return f"{needed}; {_LONGER}"


def at_size(row: SensitivitySizeRow) -> str:
    """The rate that would have been caught at one size: "1 in 350 over 1 ms", or "no rate"."""
    if row.one_in is None:
        return "no rate"
    return f"1 in {two_digits(row.one_in):,} over {time_us(row.over_us)}"


def _size_words(worst: SensitivityRow) -> str:
    """The same at the ends of the ladder: spikes at one size only must be more frequent."""
    if len(worst.sizes) < 2:  # noqa: PLR2004  one size adds nothing
        return ""
    ends = (worst.sizes[0], worst.sizes[-1])
    rates = "; ".join(f"{size(row.size_bytes)}: {at_size(row)}" for row in ends)
    return f" (at one size only: {rates})"


def two_digits(number: float) -> int:
    """Round down to two digits: more would claim a precision that there is not."""
    step = int(10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1))
    return math.floor(number / step) * step


_ALL_PAIRS = (
    "to measure all: --preflight-sweep=exhaustive, or a part each night: --preflight-history=DIR"
)


def coverage_words(report: Report) -> str:
    """Which nodes, GPUs and pairs of nodes were tested, and the option that tests more."""
    judged = [row for row in report.verdicts if row.outcome in _JUDGED]
    candidates = {*report.fleet.nodes} - {*report.fleet.left_out}
    # A login that failed shows nothing of a node; one that worked counts if no more was asked.
    deeper = {row.subject for row in judged if not row.check.startswith("reach.")}
    failed = {row.subject for row in judged if row.outcome in _NOT_REACHED}
    reached = {row.subject for row in judged} - failed
    nodes, total = len(candidates & deeper or candidates & reached), len(report.fleet.nodes)
    # Evidence may have any type in a report that is read again.
    bus_ids = [row.evidence.get("bus_ids") for row in judged if row.check == _COUNT]
    gpus = sum(len(ids) for ids in bus_ids if isinstance(ids, list | tuple))
    share = f"{nodes:,} of " * (nodes != total) + f"{total:,} node{'s' * (total != 1)}"
    with_gpus = f" with {gpus:,} GPU{'s' * (gpus != 1)}" if gpus else ""
    loaded = any(row.check.startswith("burn.") for row in judged)
    unloaded = "" if loaded or not gpus else " without load (--preflight-tier=standard loads them)"
    parts = [f"{share}{with_gpus} checked{unloaded}"]
    if candidates.isdisjoint(row.subject for row in report.verdicts):  # only pairs were asked for
        parts.clear()
    if report.coverage is not None and report.coverage.pairs:
        parts.append(_pair_words(report.coverage))
    return "; ".join(parts)


_COUNT = "gpu.count"
_JUDGED = (Outcome.OK, Outcome.WARN, Outcome.FAIL, Outcome.FLAKY, Outcome.UNKNOWN, Outcome.WAIVED)
_NOT_REACHED = (Outcome.FAIL, Outcome.UNKNOWN, Outcome.WAIVED)
"""Outcomes of a `reach.*` check whose node answered nothing more."""


def _pair_words(row: CoverageRow) -> str:
    """How many pairs were measured, and how to measure the rest."""
    more = f"; {_leaf_pair_words(row)}" if row.leaf_pairs else ""
    if row.repairs:
        more += f"; {row.repairs:,} more for partners of nodes that are out"
    if row.retests:
        more += f"; {row.retests:,} measured again"
    if row.pairs_run == row.pairs:
        words = "the only pair" if row.pairs == 1 else f"all {row.pairs:,} pairs"
        return f"{words} of nodes measured{more}"
    return f"{row.pairs_run:,} of {row.pairs:,} pairs of nodes measured{_gap_words(row)}{more}"


def _gap_words(row: CoverageRow) -> str:
    if row.pairs_known is None and row.rounds >= row.rounds_total > 0:
        return " (all were planned: the others are not run, with the reason)"
    if row.pairs_known is None:
        return f" ({_ALL_PAIRS})"
    earlier = _earlier_words(row.pairs_run, row.pairs_known)
    if row.runs_left:
        return f"{earlier}; all in {count(row.runs_left, 'more run')} like this"
    if row.runs_left is None:
        return f"{earlier}; suspects take its only round: give --preflight-budget=SECONDS"
    missing = row.pairs - row.pairs_known
    return f", all{f' but {missing:,}' if missing else ''} with earlier runs"


def _leaf_pair_words(row: CoverageRow) -> str:
    words = f"{row.leaf_pairs_run:,} of {row.leaf_pairs:,} pairs of leaf switches"
    return words + _earlier_words(row.leaf_pairs_run, row.leaf_pairs_known)


def _earlier_words(run: int, known: int | None) -> str:
    return f", {known:,} with earlier runs" if known and known > run else ""
