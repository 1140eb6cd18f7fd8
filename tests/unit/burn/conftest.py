"""What real burn-ins of a test may leave behind: nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.burn.nodes import ours
from tests.unit.fabric.nodes import wait_for

_PAYLOAD = str(Path(__file__).parents[3] / "preflight" / "payload")
if _PAYLOAD not in sys.path:
    sys.path.append(_PAYLOAD)  # its modules are imported as they are on a node

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test no process of any burn-in runs below us."""
    yield
    assert wait_for(lambda: [] if ours(os.getpid()) else [1], 10), "a burn-in left processes behind"
