"""Rank 0 and its followers over a real store: orders, output, silence, and leaving together."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from preflight.core.remote_command import ReachError
from preflight.transport import torchrun_ranks
from preflight.transport.bundle import start_payload
from tests.unit.transport.torchrun.conftest import FOLLOW, NONCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.fleet.model import Host
    from tests.unit.transport.torchrun.conftest import Job

pytestmark = pytest.mark.slow

DEADLINE_S = 60.0

_SERVE = """
import datetime
import time
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
hello = '{"nonce": "0123456789abcdef", "version": "1"}'
dist.PrefixStore("preflight/test/0", store).set("hello", hello)
print(store.port, flush=True)
store.wait(["preflight/test/0/present/1"], datetime.timedelta(seconds=60))
print("it is there", flush=True)
time.sleep(600)
"""

_NO_CUDA = """
import torch
os._exit(99 if torch.cuda.is_initialized() else code)
"""


def host(job: Job, group: int) -> Host:
    """One node of the job as the fleet has it."""
    return job.crew.ranked().hosts(None)[group]


def probe(job: Job, connection: object, group: int) -> dict[str, object]:
    """Ask a node for its facts."""
    request = {"nonce": NONCE, "name": "n", "deadline_s": 20, "driver_deadline_s": 5}
    talk = start_payload(connection, host(job, group), "probe", request, 20)  # type: ignore[arg-type]
    try:
        return msgspec.json.decode(talk.read(DEADLINE_S), type=dict)
    finally:
        talk.close()


def until(condition: Callable[[], object]) -> None:
    """Wait for something that happens soon."""
    ends = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_a_follower_answers_and_leaves_with_the_code_of_all(job: Callable[..., Job]) -> None:
    """The probe runs in a child of the follower; at the end it leaves with rank 0's exit code."""
    ours = job(world=2)
    follower = ours.follower(1)
    ways = ours.gather()
    for group in (0, 1):
        facts = probe(ours, ways.connect(host(ours, group), DEADLINE_S), group)
        assert facts["nonce"] == NONCE
    ours.hub.finish(5)
    assert follower.wait(DEADLINE_S) == 5
    assert follower.stderr is not None
    assert follower.stderr.read() == b""


def test_a_rank_that_torchrun_ends_reports_it(job: Callable[..., Job]) -> None:
    """A rank that torchrun ended is distinguished from one that died silently."""
    ours = job(world=2)
    follower = ours.follower(1)
    ways = ours.gather()
    follower.send_signal(signal.SIGTERM)
    until(lambda: ours.hub.lost.get(1))
    assert 1 in ours.hub.ended_by_torchrun
    with pytest.raises(ReachError, match=r"rank 1 \(\S+, local rank 0\) was ended by its own tor"):
        ways.connect(host(ours, 1), DEADLINE_S)
    assert follower.wait(DEADLINE_S) == 2


def test_a_rank_that_never_speaks_is_named_and_the_others_go_on(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stopped before its first note: progress names it, then it alone is left out."""
    monkeypatch.setattr(torchrun_ranks, "STRAGGLER_S", 2.0)
    monkeypatch.setattr(torchrun_ranks, "_PROGRESS_S", 0.5)
    ours = job(world=3)
    ours.follower(1)
    stopped = ours.follower(2)
    stopped.send_signal(signal.SIGSTOP)
    ways = ours.gather()
    assert "rank 2 (node of group rank 2, local rank 0)" in ours.progress[-1]
    with pytest.raises(
        ReachError, match=r"rank 2 \(node of group rank 2, .*started, then stopped answering"
    ):
        ways.connect(host(ours, 2), DEADLINE_S)
    assert probe(ours, ways.connect(host(ours, 1), DEADLINE_S), 1)["nonce"] == NONCE


def test_a_rank_that_stops_beside_a_sound_one_costs_its_node_the_sweep_only(
    job: Callable[..., Job],
) -> None:
    """Its sibling answers the probe; the connection tells the shortfall by rank, host and pid."""
    ours = job(world=2, per_node=2)
    stopped = ours.follower(1)
    ways = ours.gather()
    stopped.send_signal(signal.SIGSTOP)
    connection = ways.connect(host(ours, 0), 1.0)
    assert connection.shortfall is not None
    assert "local rank 1) started, then stopped answering" in connection.shortfall.sentence
    assert f"pid {stopped.pid}" in connection.shortfall.advice
    assert probe(ours, connection, 0)["nonce"] == NONCE
    stopped.send_signal(signal.SIGCONT)


def test_followers_end_with_the_store(job: Callable[..., Job], store: object) -> None:
    """When rank 0's torchrun dies the ranks of other nodes leave with 3, and say why in a line."""
    del store
    ours = job(world=2)
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert server.stdout is not None
    port = int(server.stdout.readline())
    argv = ours.follower_argv(msgspec.structs.replace(ours.place(1), master_port=port))
    follower = subprocess.Popen(argv, stderr=subprocess.PIPE)
    try:
        assert server.stdout.readline() == b"it is there\n"
        server.kill()
        server.wait()
        assert follower.wait(DEADLINE_S) == 3
        assert follower.stderr is not None
        assert b"preflight: rank 1 exits: " in follower.stderr.read()
    finally:
        follower.kill()
        follower.communicate()
        server.stdout.close()


def test_cuda_stays_untouched(job: Callable[..., Job]) -> None:
    """The process that meets the others in the store has no CUDA context."""
    code = FOLLOW.replace("os._exit(", "code = (") + _NO_CUDA
    ours = job(world=2)
    argv = [sys.executable, "-c", code, msgspec.json.encode(ours.place(1)).decode()]
    ours.followers[1] = follower = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    ours.gather()
    ours.hub.finish(7)
    assert follower.wait(DEADLINE_S) == 7
