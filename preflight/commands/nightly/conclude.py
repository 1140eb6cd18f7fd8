"""How a sweep ended: one report of all waves on disk, one summary on the screen, one exit code.

A wave of sixteen nodes leaves megabytes, a night hundreds of them. Removed are only files that a
wave writes, in folders of our own that are named as a wave's, of sweeps that came to their end.
"""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.commands.nightly.state import WAVE, read_sweep, sweeps_in
from preflight.commands.nightly.sweeper import SCREEN, WaveError, read_report
from preflight.commands.nightly.united import (
    Part,
    Whole,
    covered,
    fabric_of_waves,
    missing,
    owed_later,
    unite,
)
from preflight.core.files import open_folder
from preflight.core.registry import draining
from preflight.core.statistics import grouped
from preflight.core.text import legible
from preflight.errors import UsageError
from preflight.fleet.nodeset import fold
from preflight.report.events import REPORT, Began
from preflight.report.outputs import (
    OURS,
    Outputs,
    earlier,
    names_in,
    point_at,
    remove_folder,
)
from preflight.report.page import PAGE, PageContext, page
from preflight.report.since import before, night_of, since
from preflight.report.terminal import summary, title

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from preflight.commands.nightly.state import Former, Screen, Sweep
    from preflight.report.document import Report
    from preflight.report.findings import Finding
    from preflight.report.since import Bad, Night
    from preflight.verdict import Verdict


_MOST_CHANGES = 5
"""Checks that are named of each kind; the page has them all."""


def change_lines(
    report: Report, found: Sequence[Finding], earlier: Sequence[Night]
) -> list[tuple[str, str]]:
    """Label and text of each line; nothing where no earlier night is known."""
    now = night_of(report, found)
    last = before(earlier, now)
    if last is None:
        return []
    told = since(last, now, report)
    then = told.before.started[:16].replace("T", " ")
    counts = f"{len(told.new)} new, {len(told.still)} still, {len(told.recovered)} recovered"
    unseen = f", {len(told.unseen)} not judged again" if told.unseen else ""
    lines = [("since", f"{then} UTC: {counts}{unseen}")]
    for label, bad in (("new", told.new), ("recovered", told.recovered)):
        if bad:
            lines.append((label, _named(bad, report.fleet.nodes)))
    return lines


def _named(bad: Iterable[Bad], nodes: Collection[str]) -> str:
    """Check by check, folded: "gpu.count gpu[003,005]; fabric.allreduce pair gpu001-gpu002"."""
    by_check = grouped((one.check, one.subject) for one in bad)
    said = [f"{check} {_folded(names, nodes)}" for check, names in by_check.items()]
    more = f"; and {len(said) - _MOST_CHANGES} more checks" if len(said) > _MOST_CHANGES else ""
    return "; ".join(said[:_MOST_CHANGES]) + more


def _folded(names: Sequence[str], nodes: Collection[str]) -> str:
    plain = fold(name for name in names if name in nodes)
    return ", ".join(filter(None, (plain, *(name for name in names if name not in nodes))))


def parts_of(folder: Path, sweep: Sweep) -> list[Part]:
    """The reports of the waves' latest tries, as far as there are any."""
    parts = []
    for number, wave in enumerate(sweep.waves, 1):
        if not wave.folder or wave.stand in ("waiting", "left out"):
            continue
        try:
            parts.append(Part(number=number, report=read_report(folder / wave.folder)))
        except WaveError:
            continue  # its nodes are owed a verdict
    return parts


def owed_to(sweep: Sweep, parts: Sequence[Part], stopped: str) -> dict[str, Verdict]:
    """Nodes of which no wave has a report, and why."""
    told = {name for part in parts for name in part.report.fleet.nodes}
    owed: dict[str, Verdict] = {}
    for number, wave in enumerate(sweep.waves, 1):
        where = f"wave {number}" + (f" ({wave.folder})" if wave.folder else "")
        for name in wave.nodes:
            if name in told or wave.stand == "left out":
                continue
            if wave.open:
                owed[name] = owed_later(f"before its wave {stopped or 'the sweep was broken off'}")
            elif wave.stand == "broken off" and "jobs" in wave.why:
                owed[name] = owed_later(f"{wave.why} again and again, in {where}")
            else:
                owed[name] = missing(f"{where}: {wave.why or 'its report is gone'}")
    return owed


_WRITTEN = OURS | {SCREEN}


def tidy_waves(folder: Path, keep: int) -> list[str]:
    """Put away the waves of all sweeps beside this one but the latest `keep`; 0 keeps all.

    Names the sweeps of which something went. What cannot be removed stays, and costs nothing.
    """
    if keep < 1:
        return []
    gone = []
    others = [each for each in sweeps_in(folder.parent) if each.name < folder.name]
    for old in others[keep - 1 :]:
        with suppress(OSError, UsageError):
            if (old / REPORT).is_file() and read_sweep(old).finished and _put_away(old):
                gone.append(old.name)
    return gone


def _put_away(sweep: Path) -> bool:
    """Whether there was anything."""
    some = False
    with open_folder(sweep, make=False) as above:
        for name in filter(WAVE.fullmatch, names_in(above)):
            with suppress(OSError):
                some |= remove_folder(above, name, _WRITTEN)
    return some


_SAID = re.compile(r"^history +(\S.*(?:\n {9,}\S.*)*)", re.MULTILINE)
_MOST = 4 << 20


def unremembered(folder: Path, sweep: Sweep) -> dict[str, str]:
    """What waves said of a history that could not be read or written, by the waves that did."""
    said = grouped(
        (trouble, str(number))
        for number, wave in enumerate(sweep.waves, 1)
        if wave.folder and (trouble := _trouble(folder / wave.folder / SCREEN))
    )
    return {_waves(numbers): trouble for trouble, numbers in said.items()}


def _trouble(screen: Path) -> str:
    try:
        with screen.open("rb") as file:
            text = file.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return ""
    found = _SAID.findall(text)
    return legible(" ".join(found[-1].split()), 300) if found else ""


def _waves(numbers: list[str]) -> str:
    return f"wave {numbers[0]}" if len(numbers) == 1 else f"waves {', '.join(numbers)}"


def conclude(
    folder: Path,
    sweep: Sweep,
    former: Sequence[Former],
    screen: Screen,
    *,
    stopped: str,
    interrupted: bool,
) -> int:
    """Write the united report and show it. `stopped`: why waves had no turn, if so."""
    parts = parts_of(folder, sweep)
    reports = [part.report for part in parts]
    whole = Whole(
        sweep=sweep,
        owed=owed_to(sweep, parts, stopped),
        interrupted=interrupted,
        coverage=covered(
            sweep.nodes, sweep.leaves, sweep.topology, reports, [night.whole for night in former]
        ),
    )
    report, found = unite(whole, parts)
    outputs = outputs_of(folder, sweep)
    fine = report.exit == 0
    report, unheard = _written(report, found, outputs, sweep)
    tidy_waves(folder, sweep.keep)
    screen.line()
    changes = change_lines(report, found, earlier(folder))
    screen.title(title(report, unsaved=fine and report.exit != 0))
    where = "; ".join(filter(None, (outputs.at(REPORT), outputs.trouble_words, unheard)))
    drawn, hint = outputs.at(PAGE), _hint(sweep, report)
    for line in summary(report, found, where=where, page=drawn, hint=hint, width=screen.width):
        screen.line(line)
    for label, text in changes:
        screen.labelled(label, text)
    for waves, trouble in unremembered(folder, sweep).items():
        screen.labelled("history", f"{waves}: {trouble}")
    return report.exit


def outputs_of(folder: Path, sweep: Sweep) -> Outputs:
    """What the sweep as a whole writes, and where."""
    return Outputs(
        folder,
        exclude_file=Path(sweep.exclude_file) if sweep.exclude_file else None,
        metrics=Path(sweep.metrics) if sweep.metrics else None,
    )


def _written(
    report: Report, found: tuple[Finding, ...], outputs: Outputs, sweep: Sweep
) -> tuple[Report, str]:
    """Write the files, as a run does; return also why Prometheus was not told, if so."""
    report = outputs.write_report(report)
    told = PageContext(found=found, earlier=earlier(outputs.path), drains=draining())
    waves = [outputs.path / wave.folder for wave in sweep.waves if wave.folder]
    drawn = fabric_of_waves(waves, report.blames)
    outputs.write(PAGE, page(report, told, drawn).encode())
    _leave_events(report, found, outputs)
    with suppress(OSError):
        point_at(outputs.path)
    return report, outputs.write_metrics(report, found)


def _leave_events(report: Report, found: tuple[Finding, ...], outputs: Outputs) -> None:
    """What the next nights compare with; of single verdicts only those that are in no wave."""
    outputs.events.begin(
        Began(
            preflight=report.preflight,
            run=report.run,
            started=report.started,
            tier=report.tier,
            nodes=report.fleet.nodes,
            origin=report.fleet.origin,
            leaves=report.fleet.leaves,
            expected={},
        )
    )
    outputs.events.end((), night_of(report, found))


def _hint(sweep: Sweep, report: Report) -> str:
    """What to type next."""
    if not sweep.finished:
        return "to go on: the same command with --resume"
    if not report.fleet.not_ready:
        return ""
    these = [f"--preflight-nodes={fold(report.fleet.not_ready)}"]
    same = [word for word in sweep.words if word.startswith("--preflight-inventory=")]
    words = shlex.join(["preflight", "run", f"--preflight-tier={sweep.tier}", *same, *these])
    return f"to look again at these alone: {words}"
