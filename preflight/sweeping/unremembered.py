"""Nights that the history did not take: each wave says so on a screen that nobody looks at."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from preflight.sweeping.wave_process import SCREEN
from preflight.transport.legible import legible

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.sweeping.state import Sweep

_SAID = re.compile(r"^history +(\S.*(?:\n {9,}\S.*)*)", re.MULTILINE)
_MOST = 4 << 20


def unremembered(folder: Path, sweep: Sweep) -> dict[str, str]:
    """What waves said of a history that could not be read or written, by the waves that did."""
    said: dict[str, list[str]] = {}
    for number, wave in enumerate(sweep.waves, 1):
        if wave.folder and (trouble := _trouble(folder / wave.folder / SCREEN)):
            said.setdefault(trouble, []).append(str(number))
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
