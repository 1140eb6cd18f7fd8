"""What the README promises is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.cluster import why_not
from tests.stories.readme import README, comparable, excerpt, shown

ROOT = Path(__file__).parents[2]
LONGEST_S = 300


@pytest.mark.lab
def test_the_readme_shows_the_real_output_of_the_demo() -> None:
    """`make demo` names its three culprits, exits 0, and prints what the README shows."""
    if reason := why_not():
        pytest.skip(reason)
    done = _demo()
    assert done.returncode == 0, done.stdout
    assert "demo: 3 of 3 planted culprits named, 0 healthy nodes blamed" in done.stdout
    assert comparable(excerpt(done.stdout)) == comparable(shown())


def test_the_demo_without_a_lab_says_what_it_left_out() -> None:
    """Without namespaces the fleet is local processes, and the rest of the faults is named."""
    pytest.importorskip("torch")
    done = _demo("--processes")
    assert done.returncode == 0, done.stdout
    assert "left out: " in done.stdout
    assert "demo: 1 of 1 planted culprits named, 0 healthy nodes blamed" in done.stdout


def test_the_files_that_the_readme_links_exist() -> None:
    """No link of the README leads nowhere."""
    text = README.read_text(encoding="utf-8")
    for link in {part.split(")")[0] for part in text.split("](")[1:]}:
        path, _, heading = link.partition("#")
        assert (ROOT / path).exists(), link
        if not path:
            headings = re.sub(r"[^\w\n# -]", "", text).lower().splitlines()
            assert f"## {heading.replace('-', ' ')}" in headings, link


def _demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.lab.demo", *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
