"""nvidia-smi's own matrix, to hold against NVML's: operators know it, and it shows the NICs."""

from __future__ import annotations

import os

from . import guard
from .text import clean, clean_block

MOST_BYTES = 65536


def start() -> guard.Child | None:
    """Start `nvidia-smi topo -m` where there is one; it takes seconds on some drivers."""
    program = _program()
    if program is None:
        return None
    return guard.spawn_program([program, "topo", "-m"], {**os.environ, "LC_ALL": "C"})


def _program() -> str | None:
    folders = [*os.environ.get("PATH", "").split(":"), "/usr/bin", "/usr/local/bin"]
    for folder in filter(None, folders):
        program = folder + "/nvidia-smi"
        if os.path.isfile(program) and os.access(program, os.X_OK):
            return program
    return None


def finish(drawing: guard.Child | None, until: float, problems: list[str]) -> str | None:
    """Return what it printed; None where it is not there, failed, or did not end in time."""
    if drawing is None:
        return None
    ended = drawing.listen(until, limit=MOST_BYTES)
    gone = drawing.dismiss(kill=not ended or len(drawing.said) > MOST_BYTES)
    text = clean_block(bytes(drawing.said), MOST_BYTES)
    if ended and gone and drawing.status == 0:
        return text
    how = "no answer in time" if not ended else f"it failed: {clean(text, 200)}"
    problems.append(f"nvidia-smi topo -m: {how}")
    return None
