"""How a sweep ended: one report of all waves on disk, one summary on the screen, one exit code."""

from __future__ import annotations

import shlex
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.fleet.nodeset import fold
from preflight.registry import draining
from preflight.report.document import encode
from preflight.report.events import Began
from preflight.report.exclude import excluded
from preflight.report.html.page import PAGE, Told, page
from preflight.report.night import night_of
from preflight.report.outputs import Outputs
from preflight.report.ready import Readiness
from preflight.report.reread import REPORT
from preflight.report.runs import earlier, point_at
from preflight.report.terminal import summary, title
from preflight.sweeping.changes import change_lines
from preflight.sweeping.coverage import covered
from preflight.sweeping.fabric import fabric_of_waves
from preflight.sweeping.parts import owed_to, parts_of
from preflight.sweeping.retention import tidy_waves
from preflight.sweeping.united import Whole, unite
from preflight.sweeping.unremembered import unremembered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.report.document import Report
    from preflight.report.findings import Finding
    from preflight.sweeping.nights import Former
    from preflight.sweeping.screen import Screen
    from preflight.sweeping.state import Sweep

BROKE = 3


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
        sweep=sweep.sweep,
        preflight=sweep.preflight,
        started=datetime.fromtimestamp(sweep.started_s, UTC).isoformat(timespec="seconds"),
        seconds=sweep.spent_s,
        tier=sweep.tier,
        strict=sweep.strict,
        nodes=sweep.nodes,
        origin=sweep.origin,
        leaves=sweep.leaves,
        left_out=sweep.left_out,
        owed=owed_to(sweep, parts, stopped),
        interrupted=interrupted,
        coverage=covered(
            sweep.nodes, sweep.leaves, sweep.topology, reports, [night.whole for night in former]
        ),
    )
    report, found = unite(whole, parts)
    outputs = outputs_of(folder, sweep)
    fine = report.exit == 0
    report, unheard = _written(report, found, outputs, _folders(sweep))
    tidy_waves(folder, sweep.keep)
    screen.line()
    changes = change_lines(report, found, earlier(folder))
    screen.title(title(report, unsaved=fine and report.exit != 0))
    where = f"{outputs.shown}/report.json" if REPORT in outputs.written else ""
    where = "; ".join(filter(None, (where, outputs.told, unheard)))
    page_at = f"{outputs.shown}/{PAGE}" if PAGE in outputs.written else ""
    hint = _hint(sweep, report)
    for line in summary(report, found, where=where, page=page_at, hint=hint, width=screen.width):
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
    report: Report, found: tuple[Finding, ...], outputs: Outputs, waves: Sequence[str]
) -> tuple[Report, str]:
    """Write the files, as a run does; return also why Prometheus was not told, if so.

    A report that could not be written is not a pass.
    """
    fleet = report.fleet
    ready = Readiness(ready=fleet.ready, not_ready=fleet.not_ready, apart=fleet.apart)
    outputs.write("ready.hosts", "".join(f"{name}\n" for name in ready.launchable).encode())
    outputs.write(REPORT, encode(report))
    outputs.write_excluded(excluded(fleet))
    if outputs.trouble and report.exit == 0:
        report = replace(report, exit=BROKE)
    told = Told(found=found, earlier=earlier(outputs.path), drains=draining())
    drawn = fabric_of_waves([outputs.path / name for name in waves], report.blames)
    outputs.write(PAGE, page(report, told, drawn).encode())
    _leave_events(report, found, outputs)
    with suppress(OSError):
        point_at(outputs.path)
    return report, outputs.tell_prometheus(report, found)


def _folders(sweep: Sweep) -> list[str]:
    """Of the waves that were begun; each has its own page there."""
    return [wave.folder for wave in sweep.waves if wave.folder]


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
            owed={},
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
