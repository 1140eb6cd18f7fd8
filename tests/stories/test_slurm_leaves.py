"""A real Slurm says which nodes share a leaf switch, and the rounds of pairs follow it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lab.slurm import Slurm
    from tests.stories.conftest import Told


@pytest.mark.lab
def test_the_allocations_leaves_are_known(slurm: Slurm, preflight: Callable[..., Told]) -> None:
    """Nothing is said on the command line: scontrol is asked, and the header says so."""
    path = {"PATH": f"{slurm.environ['PATH']}:{os.environ['PATH']}"}
    job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "h[1-4]"}
    words = ("--co", "--preflight-sweep=1", "--preflight-seed=4")
    told = preflight(*words, env={**slurm.environ, **path, **job})
    assert told.exit == 0, told.out + told.err
    assert "seed 4; 2 leaves by scontrol show topology" in " ".join(told.out.split())
