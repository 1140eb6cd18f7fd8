"""The tests of the lab use the lab."""

from tests.lab.fixtures import cluster, lab

__all__ = ["cluster", "lab"]
