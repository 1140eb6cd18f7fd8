"""The order of the tests for several workers: each begins with its share of the stories.

    python -m pytest -n 5 --dist worksteal -p tests.spread

xdist gives each worker a run of tests that lie side by side. Stories wait much and compute little:
all in one place they come at the end, where nothing is left to compute meanwhile.
"""

from __future__ import annotations

import os
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deal the stories' files out in turn, and all others so that each share has as many tests."""
    files: dict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.path].append(item)
    shares: list[list[pytest.Item]] = [
        [] for _ in range(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    ]
    stories = [path for path in files if "stories" in path.parts]
    for number, path in enumerate(stories):
        shares[number % len(shares)] += files.pop(path)
    for tests in files.values():
        min(shares, key=len).extend(tests)
    items[:] = chain.from_iterable(shares)
