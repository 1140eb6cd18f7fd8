"""A report that is read again may have been written by anybody: one line, and what to give."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from preflight.errors import UsageError
from preflight.report.document import encode
from preflight.report.reread import reread

from .nights import report

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = encode(report(("n1", "n2"))).decode()


def test_a_run_reads_its_own_report(tmp_path: Path) -> None:
    """What it wrote comes back."""
    (tmp_path / "report.json").write_text(WHOLE)
    assert encode(reread(tmp_path)).decode() == WHOLE


@pytest.mark.parametrize(
    "started", ["0001-01-01", "", "yesterday", "9999-12-31T23:59:59Z", "2026-11-23"]
)
def test_a_time_that_no_clock_shows_is_refused(tmp_path: Path, started: str) -> None:
    """Also before a page or a metric is made of it."""
    (tmp_path / "report.json").write_text(json.dumps({**json.loads(WHOLE), "started": started}))
    with pytest.raises(UsageError, match=r"is no report of this preflight .*give another run"):
        reread(tmp_path)


@pytest.mark.parametrize("name", ["report.json", "events.jsonl"])
def test_a_document_without_bottom_is_refused(tmp_path: Path, name: str) -> None:
    """Brackets that nest a hundred thousand deep, where a field is skipped."""
    deep = WHOLE.strip()[:-1].replace("\n", "") + ',"odd":' + "[" * 100_000
    (tmp_path / name).write_text(deep)
    with pytest.raises(UsageError, match="give another run"):
        reread(tmp_path)
