"""Versions that lose xdist's groups are known by number, and by what they do."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from preflight.session.xdist import ignores_groups

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("pytest_version", "xdist_version", "bad"),
    [
        ("9.2.0", "3.8.0", True),
        ("9.2.1.dev3+gabc123", "3.6.1", True),
        ("9.3.0rc1", "3.8.0", True),
        ("9.1.1", "3.8.0", False),
        ("8.4.2", "3.6.1", False),
        ("9.2.0", "3.9.0", False),
        ("10.0", "3.8", True),
    ],
)
def test_versions_are_compared_as_numbers(
    pytest_version: str, xdist_version: str, *, bad: bool
) -> None:
    """Groups are lost from pytest 9.2 on, with every pytest-xdist up to 3.8."""
    assert ignores_groups(pytest_version, xdist_version) is bad


@pytest.mark.slow
def test_the_warning_is_true_of_what_is_installed(tmp_path: Path) -> None:
    """Groups are split over workers here if, and only if, we would warn of it."""
    (tmp_path / "test_groups.py").write_text(
        "import os, pytest, time\n"
        "@pytest.mark.parametrize('number', range(8))\n"
        "@pytest.mark.xdist_group('one')\n"
        "def test_it(number):\n"
        "    time.sleep(0.05)\n"
    )
    argv = [sys.executable, "-m", "pytest", "-v", "-n2", "--dist=loadgroup", "-pno:cacheprovider"]
    told = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    used = set(re.findall(r"^\[(gw\d)\] .*PASSED", told.stdout, re.MULTILINE))
    versions = (importlib.metadata.version(name) for name in ("pytest", "pytest-xdist"))
    assert (len(used) > 1) == ignores_groups(*versions), told.stdout
