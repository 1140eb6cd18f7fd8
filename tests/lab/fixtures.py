"""Fixtures of the lab; a conftest.py takes them: `from tests.lab.fixtures import ...`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab import slurm as slurm_lab
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


@pytest.fixture(scope="module")
def slurm_cluster(cluster: Lab) -> Iterator[slurm_lab.Slurm]:
    """Slurm over the session's hosts; tests use `slurm`, which leaves it healthy.

    It goes with its module: the limits of a slurmd are those of jobs, which others look at.
    """
    if reason := slurm_lab.why_not():
        pytest.skip(reason)
    with slurm_lab.Slurm(cluster) as running:
        yield running


@pytest.fixture
def slurm(slurm_cluster: slurm_lab.Slurm, lab: Lab) -> Iterator[slurm_lab.Slurm]:
    """Slurm over four healthy hosts, all idle; whatever the test does to it is undone after it."""
    slurm_cluster.heal()
    yield slurm_cluster
    lab.heal()
    slurm_cluster.heal()
