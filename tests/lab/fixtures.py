"""Fixtures of the lab; a conftest.py takes them: `from tests.lab.fixtures import cluster, lab`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab.cluster import Lab, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def cluster() -> Iterator[Lab]:
    """Four hosts for the whole session; tests use `lab`, which leaves them healthy."""
    if reason := why_not():
        pytest.skip(reason)
    with Lab(hosts=4) as cluster:
        yield cluster


@pytest.fixture
def lab(cluster: Lab) -> Iterator[Lab]:
    """Four healthy hosts; whatever the test does to them is undone after it."""
    yield cluster
    cluster.heal()
