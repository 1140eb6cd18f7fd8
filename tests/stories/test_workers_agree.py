"""Last of all stories: whatever one process concluded in them, four workers conclude as well."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.stories.conftest import LONGEST_S, clean_environment
from tests.stories.recorded import Recorded, essence

if TYPE_CHECKING:
    from pathlib import Path

AT_MOST = 24
"""So many kinds of run are judged again; each costs a session of pytest and its workers."""


def test_four_workers_agree_with_every_story(recorded: list[Recorded], tmp_path: Path) -> None:
    """The same measurements, judged by four workers: verdicts, ready lists and exit code agree."""
    kinds = {one.kind: one for one in recorded}
    if not kinds:
        pytest.skip("no story was told before this one")
    for number, one in enumerate(list(kinds.values())[:AT_MOST]):
        folder = tmp_path / str(number)
        told = _judged_by_four(one, folder)
        assert told.returncode == one.exit, f"{one.name}\n{told.stdout}"
        assert "4 workers [" in told.stdout
        again = essence((folder / "report.json").read_text(), one.arguments)
        assert again == one.said, one.name


def _judged_by_four(one: Recorded, folder: Path) -> subprocess.CompletedProcess[str]:
    argv = [
        sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--preflight",
        f"--preflight-report={folder}", *one.arguments,
        f"--preflight-replay={one.measured}", "-n", "4",
    ]  # fmt: skip
    return subprocess.run(
        argv, cwd=one.working, env=clean_environment(), capture_output=True, text=True,
        errors="replace", timeout=LONGEST_S, check=False,
    )  # fmt: skip
