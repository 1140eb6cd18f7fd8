"""Check files as a site would write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

OK = 'conclude(ok("fine"))'


def write_check(
    folder: Path,
    check_id: str = "site.a",
    body: str = OK,
    *,
    stage: str = "facts",
    requires: tuple[str, ...] = (),
    subject: str = "node",
    more: str = "",
) -> Path:
    """Write `test_ID.py` whose test function has that body; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    name = check_id.replace(".", "_")
    path = folder / f"test_{name}.py"
    path.write_text(
        f"""from __future__ import annotations

import os, sys
import pytest
from preflight.check import Check
from preflight.verdict import Outcome, Verdict, fail, not_run, ok, unknown, warn

CHECK = Check({check_id!r}, stage={stage!r}, requires={requires!r}{more})


def test_{name}({subject}, conclude):
    {body}
"""
    )
    return path
