"""`preflight diagnose` as somebody would type it while a job hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LONGEST_S = 180
"""Only so that a hang of its own ends the test."""


class Asked(Struct, frozen=True):
    """What it said."""

    exit: int
    out: str
    err: str

    @property
    def answer(self) -> dict[str, Any]:
        """The document of --json."""
        try:
            told: dict[str, Any] = json.loads(self.out)
        except ValueError as error:
            raise RuntimeError(
                f"preflight diagnose gave no document (exit {self.exit}): {self.err[-2000:]}"
            ) from error
        return told


def diagnose(inventory: Path, *words: str) -> Asked:
    """Ask about the job on an inventory's nodes."""
    done = subprocess.run(
        command(inventory, *words), capture_output=True, text=True, check=False, timeout=LONGEST_S
    )
    return Asked(done.returncode, done.stdout, done.stderr)


def command(inventory: Path, *words: str) -> Sequence[str]:
    """The words of that."""
    program = (sys.executable, "-m", "preflight", "diagnose")
    return (*program, "--inventory", str(inventory), *words)
