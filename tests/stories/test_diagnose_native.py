"""`preflight diagnose` of ranks that are no Python processes: C++ programs that mpirun started."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.lab.hangs.asked import diagnose

if TYPE_CHECKING:
    from tests.lab.cluster import Lab

pytestmark = pytest.mark.lab


def test_programs_that_hold_a_gpu_are_ranks_and_others_are_not(cluster: Lab) -> None:
    """Of a job of three, two hold a GPU; the third program only has the variables of a rank."""
    host = cluster.hosts["h1"]
    with ExitStack() as running:
        for rank in range(3):
            env = {
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
                "OMPI_COMM_WORLD_SIZE": "3",
            }
            holds = f"exec 3</dev/nvidia{rank}; " if rank < 2 else ""
            process = host.spawn(["sh", "-c", f"{holds}exec sleep 600"], env=env)
            running.callback(process.kill)
        done = diagnose(cluster.inventory("native.toml"), "--json", "--look-s=0.5", "h1")
    assert [one["ranks"] for one in done.answer["standings"]] == [[0, 1]], done.out
