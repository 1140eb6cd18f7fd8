"""Archives that `preflight capture` wrote on real machines are read as they were written."""

from __future__ import annotations

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
