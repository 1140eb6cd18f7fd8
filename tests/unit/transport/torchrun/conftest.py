"""A real store on loopback, rank 0's end of it here, and real follower processes."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from preflight import __version__
from preflight.transport.job_store import Hello, JobStore, Place
from preflight.transport.job_store_hub import RankHub
from preflight.transport.torchrun_ranks import TorchrunTransport, gather

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from preflight.transport.torchrun_ranks import JobRanks

NONCE = "0123456789abcdef"

FOLLOW = """
import os, sys
import msgspec
from preflight.transport.rank_follower import follow
from preflight.transport.job_store import Place
os._exit(follow(msgspec.json.decode(sys.argv[1], type=Place)))
"""


def place(rank: int, port: int, *, world: int = 2, per_node: int = 1) -> Place:
    """Rank `rank` of a small job on this machine."""
    return Place(
        rank=rank,
        world_size=world,
        local_rank=rank % per_node,
        local_world_size=per_node,
        group_rank=rank // per_node,
        run_id="test",
        master_addr="127.0.0.1",
        master_port=port,
    )


@dataclass
class Job:
    """Rank 0 of a job, its store, and the followers that were started."""

    store: Any
    world: int = 2
    per_node: int = 1
    followers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    progress: list[str] = field(default_factory=list)
    hub: RankHub = field(init=False)
    crew: JobRanks = field(init=False)

    @property
    def port(self) -> int:
        """The store's."""
        return int(self.store.port)

    def place(self, rank: int) -> Place:
        """The place of one rank."""
        return place(rank, self.port, world=self.world, per_node=self.per_node)

    def follower(self, rank: int) -> subprocess.Popen[bytes]:
        """Start one as torchrun would."""
        argv = self.follower_argv(self.place(rank))
        self.followers[rank] = subprocess.Popen(argv, stderr=subprocess.PIPE)
        return self.followers[rank]

    @staticmethod
    def follower_argv(where: Place) -> list[str]:
        """The command of a follower."""
        return [sys.executable, "-c", FOLLOW, msgspec.json.encode(where).decode()]

    def gather(self) -> TorchrunTransport:
        """Be rank 0: say hello, wait for the others, watch over them."""
        listening, speaking = JobStore.open(self.place(0)), JobStore.open(self.place(0))
        self.hub = RankHub(listening, speaking, NONCE)
        self.hub.begin()
        speaking.write("hello", msgspec.json.encode(Hello(NONCE, __version__)))
        self.crew = gather(self.place(0), speaking, NONCE, self.progress.append)
        self.hub.watch(m.rank for m in self.crew.members if m.present and m.rank)
        return TorchrunTransport(self.crew, self.hub)


@pytest.fixture
def store() -> Any:
    """The store that torchrun's agent would host."""
    dist = pytest.importorskip("torch.distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dist.TCPStore(
            "127.0.0.1",
            0,
            None,
            is_master=True,
            timeout=timedelta(seconds=10),
            wait_for_workers=False,
        )


@pytest.fixture
def job(store: Any) -> Iterator[Callable[..., Job]]:
    """Make a job; its followers end with the test."""
    jobs: list[Job] = []

    def make(*, world: int = 2, per_node: int = 1) -> Job:
        jobs.append(Job(store, world=world, per_node=per_node))
        return jobs[-1]

    yield make
    for each in jobs:
        if hasattr(each, "hub"):
            each.hub.finish(0)
        for process in each.followers.values():
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
