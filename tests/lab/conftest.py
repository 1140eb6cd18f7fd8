"""The tests of the lab use the lab."""

from tests.lab.fixtures import cluster, lab, slurm, slurm_cluster

__all__ = ["cluster", "lab", "slurm", "slurm_cluster"]
