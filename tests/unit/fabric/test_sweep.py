"""Real sweeps between processes on loopback: what is measured, and what one bad node may cost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from preflight.fabric import launch
from preflight.fabric.judge import judge_sweep
from preflight.fabric.launch import Hooks, sweep
from preflight.transport import payload_session
from tests.unit.fabric.nodes import (
    DEADLINE_S,
    HAS_TORCH,
    IN_A_PAIR,
    QUICK,
    SOAK,
    Starter,
    agent,
    fleet,
    measuring,
    plan,
    real,
    states,
    strike,
    wait_for,
)
from tests.unit.fabric.synthetic import blame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from preflight.fleet.model import Host
    from preflight.transport.payload_session import MessageSession

    Meanwhile = Callable[[Callable[[], None]], None]

pytestmark = [
    pytest.mark.busy,
    pytest.mark.skipif(not HAS_TORCH, reason="no torch in this Python"),
    pytest.mark.usefixtures("nothing_left"),
]

FINE = ("measured", "measured")


def test_two_runs_never_measure_each_other() -> None:
    """A node that another run measures stays out, named as busy and blamed for nothing.

    Whoever watches hears of nodes whose Python imports torch apart from the pairs.
    """
    hosts = fleet(3)
    importing: list[tuple[int, int, list[str]]] = []
    pairs: list[tuple[int, int]] = []
    with socket.socket(socket.AF_UNIX) as other:
        other.bind("\0preflight-load-h2")
        found = sweep(
            plan(hosts),
            hosts,
            Starter({}),
            nonce="busy",
            deadline_s=DEADLINE_S,
            hooks=Hooks(
                gathering=lambda done, of, names: importing.append((done, of, names)),
                progress=lambda done, of, _names: pairs.append((done, of)),
            ),
        )
    assert importing[0] == (0, 3, ["h1", "h2", "h3"])
    assert pairs[0] == (0, 1)
    assert "another preflight run" in found.left_out["h2"]
    assert (found.troubles, blame(found, hosts)) == ({}, ())
    assert states(found) == {"h1-h3": FINE}


_STUCK = """
import os, signal, socket
held = socket.socket(socket.AF_UNIX)
held.bind("\\0preflight-load-h2")
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_what_an_earlier_run_left_stuck_is_a_finding() -> None:
    """A stopped process that holds the node never lets go: it is reported with pid and command."""
    hosts = fleet(2)
    stuck = subprocess.Popen([sys.executable, "-c", _STUCK])
    try:
        os.waitid(os.P_PID, stuck.pid, os.WSTOPPED | os.WNOWAIT)
        found = sweep(plan(hosts), hosts, Starter({}), nonce="stuck", deadline_s=DEADLINE_S)
    finally:
        stuck.kill()
        stuck.wait()
    assert f"(pid {stuck.pid}, started " in found.troubles["h2"]
    assert found.troubles["h2"].endswith("is stopped and still holds this node")
    assert found.advice["h2"] == f"on h2: kill -9 {stuck.pid}"


def test_a_store_between_cut_paths_costs_only_who_cannot_reach_it() -> None:
    """Two paths of the first node are cut, so the second hosts: one is left out, none is blamed."""
    hosts = fleet(4)
    cut = frozenset({("h3", "h1"), ("h1", "h4"), ("h4", "h2")})
    asked = msgspec.structs.replace(plan(hosts), cut=cut)
    found = sweep(asked, hosts, Starter({}), nonce="cut", deadline_s=DEADLINE_S)
    assert (found.cut_off, found.troubles, found.waited) == ({"h4": "h2"}, {}, {})
    assert states(found) == dict.fromkeys(("h1-h2", "h1-h3", "h2-h3"), FINE)


def test_every_pair_is_measured_from_both_ends() -> None:
    """Each size and a soak, every iteration's time and gap, from both ends."""
    hosts = fleet(2)
    found = sweep(plan(hosts), hosts, Starter({}), nonce="all-well", deadline_s=DEADLINE_S)
    assert (found.left_out, found.troubles) == ({}, {})
    assert states(found) == {"h1-h2": FINE}
    for pair in found.pairs:
        for end in (pair.first, pair.second):
            assert end is not None
            asked = [(rung.size_bytes, "ladder") for rung in QUICK] + [(SOAK.size_bytes, "soak")]
            assert [(timing.size_bytes, timing.phase) for timing in end.timings] == asked
            assert all(
                3 <= len(timing.times_us) == len(timing.gaps_us) <= rung.iterations
                for timing, rung in zip(end.timings, (*QUICK, SOAK), strict=True)
            )
            began = [timing.began_s for timing in end.timings]
            assert began == sorted(began)
            assert all(timing.check_us > 0 for timing in end.timings)


def test_a_measuring_process_that_stands_still_is_replaced(meanwhile: Meanwhile) -> None:
    """Stopped in the first round: its pair is hung, later rounds are measured, no node is lost."""
    hosts = fleet(3)
    start = Starter({})

    def stop_one() -> None:
        strike(wait_for(lambda: measuring(start.talks.get("h2"), IN_A_PAIR)), signal.SIGSTOP)

    meanwhile(stop_one)
    found = sweep(plan(hosts, long_s=2.0), hosts, start, nonce="stopped", deadline_s=DEADLINE_S)
    seen = states(found)
    hung = [name for name, both in seen.items() if both != FINE]
    assert len(hung) == 1
    assert "h2" in hung[0]
    assert "hung" in seen[hung[0]]
    assert set(seen[hung[0]]) <= {"hung", "no_connect"}  # it was perhaps about to report its phase


def test_a_killed_agent_loses_its_own_pairs_only(meanwhile: Meanwhile) -> None:
    """The node that hosts no store dies: the others are measured, and it is blamed."""
    hosts = fleet(3)
    start = Starter({})

    def kill_one() -> None:
        wait_for(lambda: measuring(start.talks.get("h3")))
        strike(agent(start.talks["h3"])[:1], signal.SIGKILL)

    meanwhile(kill_one)
    found = sweep(plan(hosts, long_s=1.0), hosts, start, nonce="killed", deadline_s=DEADLINE_S)
    seen = states(found)
    assert seen["h1-h2"] == FINE
    assert FINE not in (seen["h1-h3"], seen["h2-h3"])
    assert [one.component for one in blame(found, hosts)] == ["h3"]


def test_a_node_that_falls_silent_is_lost_and_named(
    meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stands and nothing comes: the others are measured, none of them is blamed."""
    monkeypatch.setattr(payload_session, "LOST_S", 3.0)
    monkeypatch.setattr(payload_session, "RENEW_S", 1.0)
    monkeypatch.setattr(launch, "LEASE_S", 5.0)
    hosts = fleet(3)
    start = Starter({})

    def freeze_one() -> None:
        wait_for(lambda: measuring(start.talks.get("h3")))
        strike(agent(start.talks["h3"])[:1], signal.SIGSTOP)

    meanwhile(freeze_one)
    found = sweep(plan(hosts, long_s=2.0), hosts, start, nonce="frozen", deadline_s=DEADLINE_S)
    assert states(found)["h1-h2"] == FINE
    assert found.troubles == {"h3": "the connection to it was lost: no message for 3 s"}
    assert [one.component for one in blame(found, hosts)] == ["h3"]


def test_a_spent_budget_is_no_failure() -> None:
    """The time is up in the middle: what was not measured is not run, and no node is blamed."""
    hosts = fleet(3)
    found = sweep(plan(hosts, long_s=8.0), hosts, Starter({}), nonce="short", deadline_s=10.0)
    assert "time was up" in found.unfinished
    judged = judge_sweep(found, hosts)
    assert (found.troubles, found.waited, judged.blames) == ({}, {}, ())
    assert {pair.state for pair in judged.pairs.values()} <= {"measured", "not_run"}
    waiting = [pair for pair in judged.pairs.values() if pair.state == "not_run"]
    assert waiting
    assert all(pair.waited and pair.error == found.unfinished for pair in waiting)


def test_losing_the_store_keeps_what_was_measured_and_blames_its_host(
    meanwhile: Meanwhile,
) -> None:
    """The sweep ends early, no other node is blamed for it, and nothing hangs."""
    hosts = fleet(3)
    start = Starter({})

    def kill_the_host() -> None:
        wait_for(lambda: measuring(start.talks.get("h1")))
        strike(agent(start.talks["h1"])[:1], signal.SIGKILL)

    meanwhile(kill_the_host)
    found = sweep(plan(hosts, long_s=1.0), hosts, start, nonce="no-store", deadline_s=DEADLINE_S)
    assert {one.component for one in blame(found, hosts)} == {"h1"}


def test_a_node_that_never_joins_is_left_out_by_the_others() -> None:
    """It has torch, gets the order and does nothing: the others go on after one wait."""

    class Idle:
        def __init__(self, talk: MessageSession) -> None:
            self._talk = talk

        def receive(self, within_s: float) -> bytes | None:
            return self._talk.receive(within_s)

        def send(self, message: Mapping[str, object]) -> None:
            if "go" not in message:
                self._talk.send(message)

        def close(self) -> None:
            self._talk.close()

    def idle(host: Host, request: Mapping[str, object]) -> MessageSession:
        return Idle(real(host, request))

    hosts = fleet(3)
    start = Starter({"h3": idle})
    found = sweep(plan(hosts, start_s=5.0), hosts, start, nonce="idle", deadline_s=DEADLINE_S)
    assert states(found)["h1-h2"] == FINE
    assert [one.component for one in blame(found, hosts)] == ["h3"]


def test_nodes_that_talk_nonsense_are_left_out() -> None:
    """Whatever they say instead of being ready, the other two measure each other."""

    class Odd:
        def __init__(self, answer: bytes) -> None:
            self._answer = answer

        def receive(self, within_s: float) -> bytes:
            del within_s
            return self._answer

        def send(self, message: Mapping[str, object]) -> None:
            del message

        def close(self) -> None:
            pass

    hosts = fleet(4)
    start = Starter({"h1": lambda *_: Odd(b"garbage"), "h2": lambda *_: Odd(b'{"event":"done"}')})
    found = sweep(plan(hosts), hosts, start, nonce="odd", deadline_s=DEADLINE_S)
    assert set(found.left_out) == {"h1", "h2"}
    assert states(found) == {"h3-h4": FINE}


def test_a_node_without_torch_is_left_out_with_the_reason() -> None:
    """Its Python cannot import torch: that is reported, and the other two go on."""
    hosts = fleet(3)
    bare = msgspec.structs.replace(hosts[2], python=(*hosts[2].python, "-S", "-E"))
    found = sweep(plan(hosts), [*hosts[:2], bare], Starter({}), nonce="bare", deadline_s=DEADLINE_S)
    assert "No module named 'torch'" in found.left_out["h3"]
    assert "h3" in found.troubles
    assert states(found) == {"h1-h2": FINE}


def test_agents_leave_when_their_controller_does() -> None:
    """Closing the connection in mid-sweep ends the agent and all below it."""
    hosts = fleet(2)
    start = Starter({})
    talk = start(hosts[0], {"nonce": "alone", "name": "h1", "deadline_s": DEADLINE_S})
    assert b"ready" in (talk.receive(DEADLINE_S) or b"")
    assert agent(talk)
    talk.finish()  # type: ignore[attr-defined]
    assert wait_for(lambda: [] if agent(talk) else [1])
    talk.close()
