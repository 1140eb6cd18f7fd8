"""What the waves left of a sweep, and what is owed on nodes of which they left nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.sweeping.united import Part, lost, owed_later
from preflight.sweeping.wave_process import WaveError, read_report

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from preflight.sweeping.state import Sweep
    from preflight.verdict import Verdict


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
                owed[name] = lost(f"{where}: {wave.why or 'its report is gone'}")
    return owed
