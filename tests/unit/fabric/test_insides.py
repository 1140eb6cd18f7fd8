"""Real sweeps on loopback whose nodes have two rails: what goes on inside of each."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import msgspec
import pytest

from preflight.fabric.agent_events import InsideAccount, Ready, decode_event
from preflight.fabric.collect import SweepAccounts
from preflight.fabric.judge import judge_sweep
from preflight.fabric.launch import sweep
from preflight.fabric.roster import build_roster
from preflight.fabric.samples import Timing
from preflight.fabric.sweep_plan import Budget
from tests.unit.fabric.nodes import (
    DEADLINE_S,
    HAS_TORCH,
    QUICK,
    Starter,
    fleet,
    measuring,
    plan,
    real,
    strike,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from preflight.fleet.model import Host

    Meanwhile = Callable[[Callable[[], None]], None]

real_sweep = pytest.mark.skipif(not HAS_TORCH, reason="no torch in this Python")


class TwoRails:
    """A node that says that it has two rails, as ranks of a job would."""

    def __init__(self, host: Host, request: Mapping[str, object]) -> None:
        self._talk = real(host, request)
        self._remote = self._talk._remote  # type: ignore[attr-defined]

    def receive(self, within_s: float) -> bytes | None:
        """Its words, but for how many rails it has."""
        document = self._talk.receive(within_s)
        if document is None or b'"ready"' not in document:
            return document
        return msgspec.json.encode(msgspec.structs.replace(decode_event(document), rails=2))

    def send(self, message: Mapping[str, object]) -> None:
        """Pass it on."""
        self._talk.send(message)

    def close(self) -> None:
        """End it."""
        self._talk.close()


def starter(hosts: list[Host]) -> Starter:
    """All nodes have two rails."""
    return Starter({host.name: TwoRails for host in hosts})


@pytest.mark.busy
@pytest.mark.usefixtures("nothing_left")
@real_sweep
def test_after_the_rounds_the_rails_of_each_node_meet() -> None:
    """Two nodes with two rails: the pair on both, then each node by itself, on all sizes."""
    hosts = fleet(2)
    found = sweep(plan(hosts), hosts, starter(hosts), nonce="both", deadline_s=DEADLINE_S)
    assert (found.left_out, found.troubles) == ({}, {})
    assert [pair.rail for pair in found.pairs] == [0, 1]
    assert [one.node for one in found.inside] == ["h1", "h2"]
    for one in found.inside:
        for end in one.rails:
            assert end is not None
            assert (end.state, end.net) == ("measured", "tcp lo")
            assert [timing.size_bytes for timing in end.timings] == [r.size_bytes for r in QUICK]
    judged = judge_sweep(found, hosts)
    assert {one.state for one in judged.inside.values()} == {"measured"}


@pytest.mark.busy
@pytest.mark.usefixtures("nothing_left")
@real_sweep
def test_one_node_alone_is_measured_and_the_rail_that_stands_still_is_named(
    meanwhile: Meanwhile,
) -> None:
    """No pairs, no rendezvous; one of its two measuring processes is stopped."""
    hosts = fleet(1)
    start = starter(hosts)

    def both() -> list[int]:
        pids = measuring(start.talks.get("h1"), 2)
        return pids if len(pids) > 1 else []

    def stop_one() -> None:
        strike(wait_for(both)[:1], signal.SIGSTOP)

    meanwhile(stop_one)
    long = plan(hosts, long_s=4.0, rounds=())
    found = sweep(long, hosts, start, nonce="alone", deadline_s=DEADLINE_S)
    (one,) = found.inside
    assert not {end.state for end in one.rails if end} & {"measured", "absent"}
    reason = judge_sweep(found, hosts).inside["h1"].why
    assert "the all-reduce among its 2 rails" in reason
    assert " on rail " in reason
    assert "stopped by a signal" in reason


@pytest.mark.parametrize(
    "lie",
    [
        {"rail": 2},
        {"backend": "nccl"},
        {"timings": ()},
        {"timings": (Timing(8, (1.0,) * 51, (1.0,) * 51),)},
        {"timings": (Timing(8, (1.0,), (1.0,)),) * 2},
        {"timings": (Timing(9, (1.0,), (1.0,)),)},
        {"timings": (Timing(8, (1.0,), (1.0,), "soak"),)},
    ],
)
def test_an_account_that_was_not_asked_for_is_not_believed(lie: dict[str, object]) -> None:
    """A rail too many, another backend, sizes and counts that were not ordered."""
    hosts = fleet(2)
    who = build_roster(
        plan(hosts, gloo_budget=Budget()),
        {h.name: Ready("2.13", cuda=False, gpus=0, rails=2) for h in hosts},
    )
    collected = SweepAccounts(who)
    seen = InsideAccount(
        rail=0, backend="gloo", state="measured", error="", started_s=1.0, setup_ms=1.0,
        timings=(Timing(8, (1.0,), (1.0,)),),
    )  # fmt: skip
    assert not collected.add("h1", msgspec.structs.replace(seen, **lie))
    assert not collected.add("h9", seen)
    assert collected.add("h1", seen)
    assert not collected.add("h1", seen)
    assert [*collected._inside.missing] == ["h1", "h2", "h2"]
