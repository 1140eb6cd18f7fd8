"""The check of docs/internals/add-a-check.md works, with its test, as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_example_of_a_check_passes_its_test(tmp_path: Path) -> None:
    """Both are run outside of the sources, the check in the place of the shipped ones."""
    page = (ROOT / "docs/internals/add-a-check.md").read_text()
    check, test = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_swap.py").write_text(check)
    here = test.replace("preflight.checks.host.test_swap", "test_swap")
    assert here != test
    (tmp_path / "test_judge.py").write_text(here)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_judge.py")
    ran = subprocess.run(
        [*command, "-o", f"pythonpath={ROOT} ."], cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout
    shown = subprocess.run(
        (*command[:3], "--preflight", "-p", "no:cacheprovider", "-k", "host.swap",
         "-o", f"preflight_checks={tmp_path}"), cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert re.search(r"(1 ok|of swap in use)", shown.stdout), shown.stdout
