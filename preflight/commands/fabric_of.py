"""The fabric of a past run, drawn from its samples by the rules that a run judges with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.commands.placing import hosts_of
from preflight.commands.said import latest_tries, wave_folders
from preflight.commands.verdicts import judge_stored
from preflight.errors import UsageError
from preflight.fabric.stored import read_stored
from preflight.report.fabric_page import fabric_section
from preflight.sweeping.fabric import fabric_of_waves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from preflight.report.document import BlameRow
    from preflight.report.public.hide import Hider


def fabric_of(
    folder: Path, blames: Sequence[BlameRow], hider: Hider | None
) -> Callable[[int], str] | None:
    """Draw it in at most so many bytes; None where no samples were kept.

    Of a sweep all its waves are drawn together; `blames` are those of its report.
    `hider`: for a public page only quantiles are drawn, in which nobody can be recognised.
    """
    if not (folder / "measured.json").is_file():
        waves = latest_tries(wave_folders(folder))
        return fabric_of_waves(waves, blames, hider) if waves else None
    try:
        stored = read_stored(folder)
    except UsageError:
        return None  # a run that measured no pairs
    if not stored.observed.tried:
        return None
    judged = judge_stored(stored, hosts_of(stored, None))
    observed, accused, sweep = stored.observed, judged.accused, stored.sweep
    if hider is not None:
        observed, accused, sweep = hider.all_of(observed), hider.all_of(accused), None
    return lambda most: fabric_section(observed, accused, sweep=sweep, told=True, most=most)
