"""NCCL's RAS service is asked once for the whole job, and names the rank without any stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from preflight.hang.diagnose.diagnosis import diagnose
from preflight.hang.look import look_here
from tests.lab.hangs.ras_mesh import Comm, Job, Peer, RasMesh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORLD = 4


@pytest.fixture
def launch() -> Iterator[Callable[[str], list[int]]]:
    """Start the ranks of a job whose RAS service has this address, and end them."""
    started: list[subprocess.Popen[bytes]] = []

    def start(address: str) -> list[int]:
        for rank in range(WORLD):
            seat = {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(WORLD), "MASTER_ADDR": "a", "MASTER_PORT": "7",
                    "NCCL_RAS_ADDR": address}  # fmt: skip
            command = [sys.executable, "-c", "import time; time.sleep(60)"]
            started.append(subprocess.Popen(command, env={**os.environ, **seat}))
        return [one.pid for one in started]

    yield start
    for one in started:
        one.kill()
        one.wait()


def behind(pids: list[int], rank: int, version: str) -> Job:
    """A job in which one rank has launched 41 of 42 collectives."""
    counts = {n: {"AllReduce": 41 if n == rank else 42} for n in range(len(pids))}
    peers = [Peer("10.0.0.1", pid, n) for n, pid in enumerate(pids)]
    return Job(peers, [Comm(0xABC, list(range(len(pids))), counts)], version)


def test_ras_names_the_rank_behind(launch: Callable[[str], list[int]]) -> None:
    """The service is asked exactly once, and only its own commands are sent."""
    with RasMesh(Job([], [])) as mesh:
        pids = launch(mesh.address)
        mesh.job = behind(pids, 2, "2.30.7")
        answer = diagnose(look_here(pids, look_s=0.2))
    assert (answer.category, answer.culprits) == ("odd_rank", ("rank 2",)), json.dumps(
        answer.unseen
    )
    assert mesh.questions == 1
    assert "RAS: communicator 0xabc 0x1:0x2: rank 2 launched 41 AllReduce" in " ".join(
        answer.evidence
    )


@pytest.mark.parametrize("version", ["2.24.3", "2.27.3", "2.28.9"])
def test_a_version_that_may_crash_is_not_asked(
    version: str, launch: Callable[[str], list[int]]
) -> None:
    """The reason and the option that asks all the same are in the answer; then it is asked."""
    with RasMesh(Job([], [])) as mesh:
        pids = launch(mesh.address)
        mesh.job = behind(pids, 1, version)
        refused = diagnose(look_here(pids, look_s=0.2))
        assert mesh.questions == 0
        assert any("1762" in one and "--ras=always" in one for one in refused.unseen)
        answer = diagnose(look_here(pids, look_s=0.2, ras="always"))
        assert mesh.questions == 1
    assert answer.culprits == ("rank 1",)
