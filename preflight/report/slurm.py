"""What the header says of Slurm: by which job we reach the nodes, and when that would be better."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from preflight.fleet.model import Fleet

LOGINS = 1000
"""Nodes above which a login each takes longer than it should: see docs/slurm.md."""


def slurm_job(fleet: Fleet) -> str:
    """Return the job whose allocation we run in; empty if we know of none."""
    return (fleet.job.environ or {}).get("", {}).get("SLURM_JOB_ID", "")[:20]


def too_many_logins(fleet: Fleet) -> list[str]:
    """Recommend srun for a fleet that is too large to be logged in to."""
    if sum(host.transport not in ("srun", "torchrun", "local") for host in fleet.hosts) <= LOGINS:
        return []
    return [
        f"note     for more than {LOGINS:,} nodes run inside an allocation: srun starts all at once"
    ]
