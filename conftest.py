"""Keeps an ordinary `pytest` of this repository away from the checks, which judge fleets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

CHECKS = Path(__file__).resolve().parent / "checks"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect `checks/` only with --preflight; None leaves the choice to others."""
    if collection_path.resolve() != CHECKS or config.getoption("preflight", default=False):
        return None
    return True
