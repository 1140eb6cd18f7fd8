"""`torchrun <the job's arguments> -m pytest --preflight`: one verdict, and all leave together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.lab import wire
from tests.lazy_torch import needs_torch
from tests.stories.torchrun import (
    LOGIN,
    Agents,
    free_port,
    start_on,
    start_two_nodes,
    without_logins,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.lab.cluster import Lab
    from tests.lab.host import Host
    from tests.stories.conftest import Told

pytestmark = [pytest.mark.busy, needs_torch]

NEVER = "--preflight-fail-fast=never"
QUIET = "--preflight-checks=reach.answer,gpu.count,net.ports,fabric.allreduce"
"""Nothing that other programs of this machine could change."""

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
def job(tmp_path: Path) -> Iterator[Agents]:
    """The torchruns of one job; they end with the test."""
    with Agents(tmp_path) as agents:
        yield agents


def test_two_agents_of_two_ranks_each(job: Agents) -> None:
    """Healthy: both torchruns return 0, one output, every rank swept a rail, nothing is lost."""
    port = free_port()
    start_two_nodes(job, port, QUIET)
    told = job.told()
    assert [agent.exit for agent in job.every] == [0, 0], told.out + told.err
    assert "reach    torchrun (the job's own store), 2 nodes, 4 ranks\n" in told.out
    assert "environment: torchrun rank\n" in told.out
    assert told.report["missing"] == 0
    assert {(p["rail"], p["state"]) for p in told.report["pairs"]} == {
        (0, "measured"),
        (1, "measured"),
    }
    held = next(v for v in told.report["verdicts"] if v["check"] == "net.ports")
    assert "this run's own store" in held["sentence"]


def test_a_rank_that_dies_is_named(job: Agents, tmp_path: Path) -> None:
    """Killed after it announced itself: its node is condemned, the other judged, nobody waits."""
    (tmp_path / "empty" / "dies.py").write_text(DIES)
    port = free_port()
    start_two_nodes(job, port, QUIET, NEVER, "-p", "dies", env={"PYTHONPATH": "."})
    told = job.told()
    assert [agent.exit for agent in job.every] == [1, 1], told.out + told.err
    node = told.report["fleet"]["nodes"][1]
    assert told.found() == {("reach.answer", node)}, told.out + told.err
    flat = re.sub(r"\s+", " ", told.out)
    assert re.search(r"rank 3 \(\S+, local rank 1\) started, then stopped answering", flat)
    assert told.report["fleet"]["ready"] == [told.report["fleet"]["nodes"][0]]


def test_what_does_not_go_together(job: Agents) -> None:
    """An option that only a single pytest can have is one sentence, said once; all ranks leave."""
    alone = ["--standalone", "--nproc-per-node=2"]
    agent = job.start(alone, "-x").wait()
    assert agent.exit == 1  # of torchrun; the ranks' own is in its report
    assert agent.err.count("ERROR: -x (--maxfail) does not go with torchrun") == 1
    assert re.search(r"exitcode\s+: 4 ", agent.err)


def test_standalone_with_restarts(job: Agents) -> None:
    """One node alone works; that a failed rank would start preflight anew is announced."""
    job.start(["--standalone", "--nproc-per-node=1", "--max-restarts=2"], QUIET)
    told = job.told()
    assert told.exit == 0, told.out + told.err
    assert "use --max-restarts=0" in told.out


@pytest.mark.lab
def test_the_same_verdicts_as_over_ssh(
    job: Agents, lab: Lab, preflight: Callable[..., Told]
) -> None:
    """Four hosts, a GPU gone on one and a slow link on another: both ways say the same."""
    lab.hosts["h2"].set_scenario(lab.hosts["h2"].scenario.without_gpu(3))
    inventory = f"--preflight-inventory={lab.inventory()}"
    before = {name: _processes(host) for name, host in lab.hosts.items()}
    with wire.slow_link(lab.hosts["h4"]):
        start_on(job, list(lab.hosts.values()), inventory, NEVER)
        told = job.told()
        assert [agent.exit for agent in job.every] == [1, 1, 1, 1], told.out + told.err
        left = {name: _processes(host) - before[name] for name, host in lab.hosts.items()}
        ours = told.outcomes()
        not_ready = told.report["fleet"]["not_ready"]
        theirs = preflight(inventory, NEVER).outcomes()
    assert not any(left.values()), left
    assert not_ready == ["h2", "h4"]
    assert {outcome for check, _, outcome in ours if check in LOGIN} == {"not_run"}
    assert without_logins(ours) == without_logins(theirs)


def _processes(host: Host) -> set[str]:
    return set(host.run(["ps", "-eo", "args"]).stdout.splitlines())
