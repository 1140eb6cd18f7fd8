"""Whether a process that a test has started is gone."""

from __future__ import annotations

from pathlib import Path


def ended(pid: int) -> bool:
    """It is not there any more, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except (FileNotFoundError, ProcessLookupError):
        return True
