"""docs/how-to/hangs.md leads to commands that exist and are accepted."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from preflight.core.registry import load_folder, shipped_folder

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "hangs.md").read_text()
COMMAND = re.compile(r"(?:preflight [a-z]+|pytest --preflight\b)[^`|\n]*")
TYPED = [
    one
    for part in re.findall(r"`([^`\n]+)`", PAGE) + re.findall(r"(?m)^\w[\w ]{17}  .*$", PAGE)
    for one in COMMAND.findall(part)
]


@cache
def told_by(*words: str) -> str:
    """The help of a command."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    return done.stdout


def test_the_page_has_a_command_at_every_leaf() -> None:
    """Each row of its tables but those that send elsewhere on the page."""
    rows = [row for row in PAGE.splitlines() if row.startswith("| ") and " | " in row]
    leaves = [row.rpartition(" | ")[2] for row in rows if "then |" not in row]
    assert len(leaves) > 25
    assert all(COMMAND.search(leaf) or "](#" in leaf or "--preflight" in leaf for leaf in leaves)


@pytest.mark.slow
@pytest.mark.parametrize("typed", sorted({" ".join(one.split()) for one in TYPED}))
def test_its_commands_are_taken(typed: str) -> None:
    """Verbs, options and the ids of checks are real."""
    options = set(re.findall(r"--[a-z][a-z-]*", re.sub(r"'[^']*'", "", typed.partition(" -- ")[0])))
    if typed.startswith("preflight "):
        helped = told_by("-m", "preflight", typed.split()[1], "--help")
    else:
        helped = told_by("-m", "pytest", "--help")
    assert {one for one in options if one not in helped} == set()
    checks = {registered.check.id for registered in load_folder(shipped_folder())}
    for ids in re.findall(r"--checks=(\S+)", typed):
        assert set(ids.split(",")) <= checks
