"""Tests that sweep on this machine itself take turns: two of them would meet in one node's lock."""

from __future__ import annotations

import fcntl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _in_turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Wait until no other test process sweeps here; hosts of a lab are a world of their own."""
    marked = request.node.get_closest_marker
    if marked("busy") is None or marked("lab") is not None:
        yield
        return
    with Path(tempfile.gettempdir(), "preflight-tests-sweep-here.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
