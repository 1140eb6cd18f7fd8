"""The example manifests for Kubernetes do what they say: their own commands, run in pods."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.lazy_torch import needs_torch
from tests.stories.kubelet import Job
from tests.unit.contrib import manifests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.cluster import Lab

pytestmark = [pytest.mark.busy, pytest.mark.lab, needs_torch]

PODS, GPUS = 2, 2

TRAIN = """
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(total := torch.ones(1))
os.write(1, f"rank {os.environ['RANK']} trains with {int(total)}\\n".encode())
dist.destroy_process_group()
"""


DIES = """
import os
import signal

from preflight.transport.rank_follower import Follower


def die(self, order):
    os.kill(os.getpid(), signal.SIGKILL)


if os.environ.get("RANK") == "3":
    Follower._execute = die
"""


@pytest.fixture
def job(lab: Lab, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    """Two pods of a manifest, on nodes with two GPUs each; they end with the test."""
    for host in lab.hosts.values():
        host.set_scenario(replace(host.scenario, gpus=host.scenario.gpus[:GPUS]))
    text = manifests.changed(manifests.read(request.param), pods=PODS, gpus=GPUS)
    with Job(lab, tmp_path, text) as running:
        (running.image / "train.py").write_text(TRAIN)
        (running.image / "dies.py").write_text(DIES)
        yield running


alone = pytest.mark.parametrize("job", ["preflight-job.yaml"], indirect=True)
before = pytest.mark.parametrize("job", ["training-job.yaml"], indirect=True)


def _exits(job: Job) -> list[dict[str, int | None]]:
    return [{name: agent.exit for name, agent in pod.ran.items()} for pod in job.pods]


def _log(job: Job) -> str:
    """The log of pod 0, which is the only one with a verdict."""
    first, *others = (pod.ran["preflight"] for pod in job.pods)
    for agent in others:
        assert len(agent.out.splitlines()) == 1, agent.out
    return first.out


@before
def test_training_starts_when_all_nodes_are_fit(job: Job) -> None:
    """Every init container leaves with 0, pod 0 says so, and the job itself meets and trains."""
    job.run()
    assert _exits(job) == [{"preflight": 0, "train": 0}] * PODS, job.said()
    for index, pod in enumerate(job.pods):
        told = f"preflight: train-{index} is number {index}, on node {pod.node}\n"
        assert pod.ran["preflight"].out.startswith(told)
        ranks = {f"rank {GPUS * index + i} trains with {PODS * GPUS}" for i in range(GPUS)}
        assert set(pod.ran["train"].out.splitlines()) == ranks
    log = _log(job)
    assert "\nfleet    train-[0-1]  2 nodes, 4 GPUs expected  (from torchrun" in log
    assert "\nready      train-[0-1]  2 of 2\n" in log
    kept = [job.volume(pod, "report") / "preflight" / "report.json" for pod in job.pods]
    assert [file.exists() for file in kept] == [True, False]


@before
def test_training_does_not_start_beside_an_unfit_node(job: Job) -> None:
    """An expected GPU is lost: every init container fails, no other starts, the pod is named."""
    host = job.pods[1].host
    host.set_scenario(host.scenario.gpu_lost(1))
    job.run()
    assert _exits(job) == [{"preflight": 1}] * PODS, job.said()
    log = _log(job)
    assert "\nFAIL   train-1  gpu.count\n" in log
    assert "\nnot ready  train-1  --exclude=train-1\n" in log
    assert job.pods[1].ran["preflight"].out.endswith(f"on node {job.pods[1].node}\n")


@alone
def test_a_rank_that_dies_fails_every_pod(job: Job) -> None:
    """One rank is killed while preflight runs: its pod is named, and no pod says fit."""
    job.run(PYTEST_PLUGINS="dies", PYTHONPATH="/job")
    assert _exits(job) == [{"preflight": 1}] * PODS, job.said()
    log = re.sub(r"\s+", " ", _log(job))
    assert "rank 3 (preflight-1, local rank 1) started, then stopped answering" in log
    assert " not ready preflight-1 --exclude=preflight-1 " in log


@before
def test_a_pod_that_comes_alone_fails(job: Job) -> None:
    """Its peer finds no node: after JOIN_S the pod fails, and its training does not start."""
    job.run(job.pods[0], JOIN_S="5")
    assert _exits(job) == [{"preflight": 1}, {}], job.said()
    assert "RendezvousTimeoutError" in job.pods[0].ran["preflight"].err
