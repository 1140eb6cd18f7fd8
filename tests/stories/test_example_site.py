"""The example site does what its page says: the page's own commands are run, in a copy of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from preflight.core.registry import load_folder
from tests.stories.conftest import LONGEST_S

DOCS = Path(__file__).parents[2] / "docs"
IDS = {"site.pair_backend", "site.same_image", "site.scratch_space"}
FOREIGN = ("SLURM_", "PREFLIGHT_", "PYTEST_", "CUDA_", "MASTER_", "TORCH", "SITE_")


def _commands() -> list[tuple[str, list[str]]]:
    """Every command of the page, and the lines that it shows of what is printed."""
    page = (DOCS / "how-to" / "own-check.md").read_text(encoding="utf-8")
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def _steady(text: str) -> str:
    """Leave out how long it took, and how lines are padded."""
    return re.sub(r"[\d.]+ s\b", "N s", text)


def test_the_page_shows_what_happens(tmp_path: Path) -> None:
    """Each line that the page shows is printed, and the checks are in every report by their ids."""
    pytest.importorskip("torch")
    ignored = shutil.ignore_patterns("preflight-runs", "__pycache__", "*.prom", ".pytest_cache")
    shutil.copytree(DOCS / "example-site", tmp_path / "docs" / "example-site", ignore=ignored)
    where, exits = tmp_path, []
    mine = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command, shown in _commands():
        if command.startswith("cd "):
            where /= command.removeprefix("cd ")
            continue
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=where,
            env={**mine, "COLUMNS": "80", "PATH": path},
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        assert done.stderr == "", command
        printed = set(map(_steady, done.stdout.splitlines()))
        assert set(map(_steady, shown)) <= printed, f"{command}\n{done.stdout}"
        exits.append((command.split()[0], done.returncode))
    assert exits == [("pytest", 0), ("cat", 0), ("sed", 0), ("pytest", 1), ("preflight", 0)]
    first, second = sorted((where / "preflight-runs").glob("2*/report.json"))
    rows = json.loads(first.read_text())["verdicts"]
    assert {row["check"] for row in rows} == IDS
    (odd,) = [row for row in json.loads(second.read_text())["verdicts"] if row["culprits"]]
    assert (odd["check"], odd["subject"], odd["culprits"]) == (
        "site.same_image", "fleet:all", ["site3"],
    )  # fmt: skip
    cases = ET.parse(where / "junit.xml").iter("testcase")  # noqa: S314  we wrote it
    names = {str(case.get("name")) for case in cases}
    assert {name.split("[")[0] for name in names} == IDS
    assert "site.same_image[fleet:all]" in names


def test_the_check_of_the_page_is_complete(tmp_path: Path) -> None:
    """A reader copies it into a folder, and it judges this machine."""
    page = (DOCS / "how-to" / "own-check.md").read_text(encoding="utf-8")
    source = next(
        one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "CHECK =" in one
    )
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "test_site_kernel.py").write_text(source)
    command = [str(Path(sys.executable).with_name("preflight")), "check", "--json"]
    done = subprocess.run(
        [*command, "--site-checks=checks", "--checks=site.kernel"],
        cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST_S, check=False,
    )  # fmt: skip
    (row,) = json.loads(done.stdout)["verdicts"]
    assert (row["check"], row["outcome"] in ("ok", "fail")) == ("site.kernel", True), row


def test_the_examples_own_checks_are_sound() -> None:
    """They load as any site's do, one id a file, and keep the names of their files."""
    for registered in load_folder(DOCS / "example-site" / "checks"):
        assert registered.path.name == f"test_{registered.check.id.replace('.', '_')}.py"
        assert registered.parameter.startswith("preflight_")
