"""Real burn-ins on this machine's CPUs: what is measured, and what one bad device may cost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.burn.comparison import judge_burn
from preflight.fleet.model import Host
from preflight.run import stages as stage
from tests.unit.burn.nodes import SHORT, Node, long_gemm, mostly_stopped, named, ours, until
from tests.unit.fabric.nodes import HAS_TORCH

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.busy,
    pytest.mark.skipif(not HAS_TORCH, reason="no torch in this Python"),
    pytest.mark.usefixtures("shut_out", "nothing_left"),
]

HOST = [Host(name="b1", address="127.0.0.1")]


@pytest.fixture(scope="module")
def shut_out() -> Iterator[Node]:
    """A node that another run holds: it waits for that one's end, asleep, beside all tests here."""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind("\0preflight-load-b9")
        yield Node(SHORT, name="b9")


def test_every_device_is_measured_and_proven() -> None:
    """Four slots: every measure of each, both proofs right and equal, every pair both ways."""
    node = Node(SHORT)
    burned = node.burned()
    assert (burned.done, burned.trouble, burned.lost) == (True, "", ())
    single = {"gemm_tflops", "memory_gbs", "launch_us", "sustained_tflops", "h2d_gbs", "d2h_gbs"}
    for device in range(4):
        own = [one for one in burned.readings if one.device == device and one.to is None]
        assert {one.measure for one in own} == single
        assert all(0 <= one.waited <= 1 for one in own)
        proofs = {one.what: one for one in burned.proofs if one.device == device and one.to is None}
        assert set(proofs) == {"product", "memory", "load"}
        assert not any(one.wrong for one in proofs.values())
    assert len({one.digest for one in burned.proofs if one.what == "product"}) == 1
    ways = {(one.device, one.to) for one in burned.readings if one.measure == "p2p_gbs"}
    assert ways == {(a, b) for a in range(4) for b in range(4) if a != b}
    assert node.steps[0][0] == 0
    assert node.steps[-1][0] == node.steps[-1][1] > 1


def test_a_device_that_hangs_or_dies_costs_no_other_device() -> None:
    """One stopped, one killed (by the kernel for memory, say): each is named, the rest goes on."""
    node = Node(long_gemm(limit_s=15, samples=60))
    os.kill(node.find("preflight-cpu2"), signal.SIGSTOP)
    os.kill(node.find("preflight-cpu1"), signal.SIGKILL)
    burned = node.burned()
    assert burned.done
    died, hung = sorted(burned.lost, key=lambda one: one.device)
    assert (died.device, died.how, died.error) == (1, "died", "its process was killed by SIGKILL")
    assert (hung.device, hung.how, hung.phase) == (2, "hung", "gemm")
    assert "it stood still for 15 s and was killed; it was stopped by a signal" in hung.error
    for measure in ("gemm_tflops", "memory_gbs"):
        assert {o.device for o in burned.readings if o.measure == measure} == {0, 3}


@pytest.mark.proves("burn.gemm", finds="a process that runs only 4 % of the time")
def test_a_device_that_is_slow_stands_out() -> None:
    """One of four has 4 % of its time only, and none of the others is called slow.

    Where other work scatters its peers too much, there is no verdict, and the test measures again.
    """
    held: dict[str, str] = {}
    for _ in range(3):
        held = _held_with_one_slow()
        if held["slot 3"] != "ok":
            break
    assert held.pop("slot 3") in ("slow", "starved")


def _held_with_one_slow() -> dict[str, str]:
    node = Node(long_gemm(limit_s=90, samples=20, sample_s=0.01, warm_s=2.0))
    with mostly_stopped(node.find("preflight-cpu3", early=True)):
        burned = node.burned()
    units = judge_burn({"b1": burned}, HOST, {})["b1"].of("gemm_tflops")
    held: dict[str, str] = {one.name: one.held for one in units}
    assert "slow" not in (held["slot 0"], held["slot 1"], held["slot 2"]), units
    return held


def test_two_runs_never_measure_each_other(shut_out: Node) -> None:
    """A node that another run loads or sweeps is left out, through no fault of its own."""
    burned = shut_out.burned()
    assert "another preflight run measures this node" in burned.left_out
    assert (burned.trouble, burned.readings) == ("", ())


def test_a_node_that_is_killed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent dies: what it had sent is kept, its devices' processes end with it."""
    monkeypatch.setattr(stage, "_TURN_S", 0.2)
    node = Node(long_gemm(limit_s=60), slots=2)
    os.kill(_parent(node.find("preflight-cpu0")), signal.SIGKILL)
    burned = node.burned()
    assert not burned.done
    assert burned.trouble
    assert len(burned.opened) == 2


def test_out_of_time_no_node_is_blamed() -> None:
    """The only node is not done by the deadline: what it sent is kept, and it is not blamed."""
    burned = Node(long_gemm(limit_s=100, samples=100_000), slots=2, deadline_s=5).burned()
    assert (burned.done, burned.stopped) == (False, True)
    assert "it had not finished when its time was up" in burned.trouble


CONTROLLER = """\
from preflight.run import stages as burn
from tests.unit.burn.nodes import Node, long_gemm
burn.LEASE_S = 4.0
Node(long_gemm(limit_s=100, samples=100_000), slots=2, name="gone").burned()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "silent"])
def test_a_controller_that_goes_away_leaves_nothing(number: signal.Signals) -> None:
    """Killed: the line ends. Silent: the lease does. Either way all loads end by themselves."""
    away = subprocess.Popen([sys.executable, "-c", CONTROLLER])
    try:
        assert until(lambda: len(ours(away.pid)) == 2)
        agent = _parent(named(away.pid, "preflight-cpu0")[0])
        left = [agent, *ours(away.pid)]
        os.kill(away.pid, number)
        assert until(lambda: not any(map(_alive, left)))
    finally:
        away.kill()
        away.wait()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] not in ("Z", "X")
    except OSError:
        return False
