"""Archives that `preflight capture` wrote on real machines are read as they were written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.golden.hold import FOLDER, hold

if TYPE_CHECKING:
    from pathlib import Path

FOUND = sorted(FOLDER.glob("*.tar.gz"))


@pytest.mark.skipif(not FOUND, reason="no capture of a real machine in tests/golden yet")
@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_a_capture_of_a_real_machine_is_read(path: Path) -> None:
    """Facts decode, texts are of known kinds, NCCL's log says what carried the data."""
    archive, verdicts = hold(path)
    assert archive.files
    assert verdicts


def test_the_page_of_what_has_run_names_tests_that_exist() -> None:
    """The page of what has run names no test that is gone, and lists every capture."""
    root = FOLDER.parents[1]
    page = (root / "docs" / "explanation" / "what-has-run.md").read_text()
    named = set(re.findall(r"tests/[\w./-]*\w", page))
    assert {name for name in named if not (root / name).exists()} == set()
    assert [path.name for path in FOUND if path.name not in page] == []
