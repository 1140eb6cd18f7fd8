"""Rank 0 and its followers over a real store: orders, output, silence, and leaving together."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from preflight.transport.bundle import start_payload
from preflight.transport.protocol import ReachError
from tests.unit.torchrun.conftest import NONCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.fleet.model import Host
    from tests.unit.torchrun.conftest import Job

DEADLINE_S = 30.0


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


def test_a_rank_that_is_told_to_end_says_so(job: Callable[..., Job]) -> None:
    """Whoever torchrun ends is told apart from whoever died without a word."""
    ours = job(world=2)
    follower = ours.follower(1)
    ways = ours.gather()
    follower.send_signal(signal.SIGTERM)
    until(lambda: ours.hub.why_lost(1))
    assert ours.hub.told_to_leave(1)
    with pytest.raises(ReachError, match=r"rank 1 \(\S+, local rank 0\) was ended by its own tor"):
        ways.connect(host(ours, 1), DEADLINE_S)
    assert follower.wait(DEADLINE_S) == 2
