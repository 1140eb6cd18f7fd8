"""Ends a nightly run: writes one report of all waves, prints one summary, returns one exit code.

A wave of sixteen nodes leaves megabytes, a night hundreds of them, so old waves are removed: only
files that a wave writes, in folders named like a wave's, of finished nightly runs.
"""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.commands.nightly.state import WAVE, nightly_folders, read_nightly_run
from preflight.commands.nightly.united import fabric_of_waves, unite, wave_words
from preflight.commands.nightly.wave_runner import SCREEN, read_report
from preflight.core.files import open_folder
from preflight.core.registry import draining_ids
from preflight.core.statistics import grouped
from preflight.core.text import cut_list, excerpt
from preflight.errors import UsageError
from preflight.fleet.nodeset import fold
from preflight.report.document import Report, row_of
from preflight.report.events import REPORT, SCHEMA, Began
from preflight.report.outputs import FILES, Outputs, names_in, past_runs, remove_folder, set_latest
from preflight.report.page import PAGE, page
from preflight.report.since import BadSubject, RunSummary, compare, summary_of
from preflight.report.terminal import summary, title
from preflight.verdict import Outcome, Verdict, not_run

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from preflight.commands.nightly.state import Night, NightlyRun, Screen
    from preflight.report.findings import Finding


_MOST_CHANGES = 5
"""How many checks are named of each kind; the page has all."""


def change_lines(
    report: Report, all_findings: Sequence[Finding], earlier: Sequence[RunSummary]
) -> list[tuple[str, str]]:
    """Return label and text of each line; none without an earlier night."""
    changes = compare(earlier, summary_of(report, all_findings), report)
    if changes is None:
        return []
    date = changes.reference.started[:16].replace("T", " ")
    counts = (
        f"{len(changes.new)} new, {len(changes.still)} still, {len(changes.recovered)} recovered"
    )
    unseen = f", {len(changes.unseen)} not judged again" if changes.unseen else ""
    lines = [("since", f"{date} UTC: {counts}{unseen}")]
    for label, verdicts in (("new", changes.new), ("recovered", changes.recovered)):
        if verdicts:
            lines.append((label, _list_by_check(verdicts, report.fleet.nodes)))
    return lines


def _list_by_check(verdicts: Iterable[BadSubject], nodes: Collection[str]) -> str:
    """List findings by check, folded: "gpu.count gpu[003,005]; net.ports gpu001"."""
    by_check = grouped((row.check, row.subject) for row in verdicts)
    lists = [f"{check} {_fold_names(names, nodes)}" for check, names in by_check.items()]
    return "; ".join(cut_list(lists, _MOST_CHANGES))


def _fold_names(names: Sequence[str], nodes: Collection[str]) -> str:
    folded = fold(name for name in names if name in nodes)
    return ", ".join(filter(None, (folded, *(name for name in names if name not in nodes))))


def reports_of(folder: Path, nightly: NightlyRun) -> dict[int, Report]:
    """Return the reports of the waves' latest tries by number, where there are any."""
    reports = {}
    for number, wave in enumerate(nightly.waves, 1):
        if wave.folder and wave.stand not in ("waiting", "left out"):
            with suppress(UsageError):  # its nodes count as missing
                reports[number] = read_report(folder / wave.folder)
    return reports


def missing_nodes(
    nightly: NightlyRun, reports: Iterable[Report], stopped: str
) -> dict[str, Verdict]:
    """Return a verdict for each node that is in no wave's report."""
    names = {name for report in reports for name in report.fleet.nodes}
    missing: dict[str, Verdict] = {}
    for number, wave in enumerate(nightly.waves, 1):
        place = f"wave {number}" + (f" ({wave.folder})" if wave.folder else "")
        for name in wave.nodes:
            if name in names or wave.stand == "left out":
                continue
            if wave.open:
                reason = f"before its wave {stopped or 'the nightly run was interrupted'}"
                missing[name] = not_run(reason, stopped=True)
            elif wave.stand == "broken off" and "jobs" in wave.why:
                missing[name] = not_run(f"{wave.why} repeatedly, in {place}", stopped=True)
            else:
                missing[name] = Verdict(
                    outcome=Outcome.MISSING,
                    sentence=f"{place}: {wave.why or 'its report is missing'}",
                    advice="see its wave's folder; to repeat it: preflight nightly --resume",
                )
    return missing


_WAVE_FILES = FILES | {SCREEN}


def tidy_waves(folder: Path, keep: int) -> None:
    """Remove the waves of older nightly runs, except the latest `keep` nightly runs; 0 keeps all.

    Files that cannot be removed stay.
    """
    older = [path for path in nightly_folders(folder.parent) if path.name < folder.name]
    for sweep in older[keep - 1 :] if keep > 0 else ():
        with suppress(OSError, UsageError):
            if (sweep / REPORT).is_file() and read_nightly_run(sweep).finished:
                _remove_waves(sweep)


def _remove_waves(nightly: Path) -> None:
    with open_folder(nightly, make=False) as parent:
        for name in filter(WAVE.fullmatch, names_in(parent)):
            with suppress(OSError):
                remove_folder(parent, name, _WAVE_FILES)


_HISTORY_LINE = re.compile(r"^history +(\S.*(?:\n {9,}\S.*)*)", re.MULTILINE)
_MOST_BYTES = 4 << 20


def history_troubles(folder: Path, nightly: NightlyRun) -> dict[str, str]:
    """Return the waves' messages about a history that could not be read or written, by waves."""
    troubles = grouped(
        (trouble, number)
        for number, wave in enumerate(nightly.waves, 1)
        if wave.folder and (trouble := _trouble(folder / wave.folder / SCREEN))
    )
    return {wave_words(numbers): trouble for trouble, numbers in troubles.items()}


def _trouble(screen: Path) -> str:
    try:
        with screen.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    lines = _HISTORY_LINE.findall(text)
    return excerpt(" ".join(lines[-1].split()), 300) if lines else ""


def conclude(
    folder: Path,
    nightly: NightlyRun,
    former: Sequence[Night],
    screen: Screen,
    *,
    stopped: str,
    interrupted: bool,
) -> int:
    """Write the united report and print its summary. `stopped`: why waves did not run, or ""."""
    reports = reports_of(folder, nightly)
    missing = missing_nodes(nightly, reports.values(), stopped)
    report, findings = unite(nightly, reports, missing, former, interrupted=interrupted)
    outputs = outputs_of(folder, nightly)
    report = _write_outputs(report, findings, outputs, nightly)
    tidy_waves(folder, nightly.keep)
    screen.line()
    changes = change_lines(report, findings, past_runs(folder))
    screen.line(f" {title(report, unsaved=outputs.unsaved)} ".center(screen.width, "="))
    place, drawn, hint = outputs.report_words, outputs.path_words(PAGE), _hint(nightly, report)
    for line in summary(report, findings, where=place, page=drawn, hint=hint, width=screen.width):
        screen.line(line)
    for label, text in changes:
        screen.labelled(label, text)
    for waves, trouble in history_troubles(folder, nightly).items():
        screen.labelled("history", f"{waves}: {trouble}")
    return report.exit


def outputs_of(folder: Path, nightly: NightlyRun) -> Outputs:
    """Return the files that the nightly run as a whole writes."""
    exclude_file = Path(nightly.exclude_file) if nightly.exclude_file else None
    metrics = Path(nightly.metrics) if nightly.metrics else None
    return Outputs(folder, exclude_file=exclude_file, metrics=metrics)


def _write_outputs(
    report: Report, all_findings: tuple[Finding, ...], outputs: Outputs, nightly: NightlyRun
) -> Report:
    """Write the files, as a run does."""
    report = outputs.write_report(report)
    waves = [outputs.path / wave.folder for wave in nightly.waves if wave.folder]
    fabric = fabric_of_waves(waves, report.blames)
    html = page(
        report, all_findings, fabric, earlier=past_runs(outputs.path), drains=draining_ids()
    )
    outputs.write(PAGE, html.encode())
    # What later nights compare with; single verdicts only if they are in no wave.
    outputs.events.begin(row_of(Began, report, report.fleet, schema=SCHEMA, expected={}))
    outputs.events.end((), summary_of(report, all_findings))
    with suppress(OSError):
        set_latest(outputs.path)
    outputs.write_metrics(report, all_findings)
    return report


def _hint(nightly: NightlyRun, report: Report) -> str:
    """Return what to type next."""
    if not nightly.finished:
        return "to continue: repeat the command with --resume"
    if not report.fleet.not_ready:
        return ""
    nodes = fold(report.fleet.not_ready)
    pairs = (word.partition("=") for word in nightly.words)
    flags = [f"--inventory={value}" for name, _, value in pairs if name == "--preflight-inventory"]
    words = shlex.join(["preflight", "check", nodes, f"--tier={nightly.tier}", *flags])
    return f"to check only these again: {words}"
