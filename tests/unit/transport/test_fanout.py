"""Many nodes at once, and none of them waited for past the deadline."""

from __future__ import annotations

import _thread
import subprocess
import sys
import threading
import time

import pytest

from preflight.fleet.model import Host
from preflight.transport.ways import Gate, TooSlowError, fan_out

PATIENCE_S = 20.0


def test_results_and_errors_come_back_by_name() -> None:
    """What the work returns or raises is the result of its item, in the items' order."""

    def work(host: Host) -> int:
        return 10 // int(host.name[1:])

    hosts = [Host(name=name, address=name) for name in ("h5", "h0", "h2")]
    results = fan_out(hosts, work, deadline_s=PATIENCE_S)
    assert list(results) == ["h5", "h0", "h2"]
    assert results["h5"] == 2
    assert isinstance(results["h0"], ZeroDivisionError)


def test_nothing_to_do_is_done_at_once() -> None:
    """An empty fleet has empty results."""
    assert fan_out([], len, deadline_s=PATIENCE_S) == {}


def test_a_stuck_node_is_left_behind() -> None:
    """At the deadline the stuck and the never started get their reasons; the others are there."""
    stuck = threading.Event()
    began: list[str] = []

    def work(name: str) -> str:
        began.append(name)
        if name == "stuck":
            stuck.wait()
        return name

    results = fan_out(["quick", "stuck", "queued"], work, at_most=1, deadline_s=0.31234567)
    assert results["quick"] == "quick"
    assert isinstance(results["stuck"], TooSlowError)
    assert "had not ended after 0.312 s" in str(results["stuck"])
    assert "turn had not come" in str(results["queued"])
    stuck.set()
    assert began == ["quick", "stuck"]


def test_a_stuck_thread_does_not_keep_the_process_alive() -> None:
    """A run with a stuck node can still exit."""
    program = (
        "import threading\nfrom preflight.transport.ways import fan_out\n"
        "print(fan_out(['h'], lambda name: threading.Event().wait(), deadline_s=0.2))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)  # noqa: PLW1510
    assert (result.returncode, result.stderr) == (0, b"")


def test_the_bound_holds() -> None:
    """No more than `at_most` are worked on at once."""
    lock, now, most = threading.Lock(), 0, 0

    def work(_: str) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.005)
        with lock:
            now -= 1

    fan_out([str(n) for n in range(40)], work, at_most=4, deadline_s=PATIENCE_S)
    assert most <= 4


def test_nodes_that_wait_for_each_other_pass_a_gate_and_meet() -> None:
    """65 nodes that all must be there at once meet behind a bound of 64 on their set-up."""
    meeting = threading.Barrier(65, timeout=PATIENCE_S)
    gate = Gate(64)

    def work(_: str) -> int:
        with gate.passage(PATIENCE_S):
            pass
        return meeting.wait()

    results = fan_out([str(n) for n in range(65)], work, at_most=None, deadline_s=PATIENCE_S)
    assert sorted(results.values(), key=str) == sorted(range(65), key=str)


def test_a_full_gate_has_a_deadline() -> None:
    """Without a free place in time there is an error; a place that is left can be taken again."""
    gate = Gate(1)
    with gate.passage(PATIENCE_S), pytest.raises(TooSlowError), gate.passage(0.05):
        pass
    with gate.passage(PATIENCE_S):
        pass


def test_progress_names_the_straggler() -> None:
    """Progress ends with all done, and before that names the nodes that are waited for."""
    calls: list[tuple[int, int, list[str]]] = []
    last = threading.Event()

    def work(name: str) -> None:
        if name == "slow":
            last.wait(PATIENCE_S)

    def progress(done: int, total: int, waiting: list[str]) -> None:
        calls.append((done, total, waiting))
        if waiting == ["slow"]:
            last.set()

    fan_out(["a", "slow", "b"], work, deadline_s=PATIENCE_S, progress=progress)
    assert (2, 3, ["slow"]) in calls
    assert calls[-1] == (3, 3, [])


def test_an_interrupt_is_not_held_up() -> None:
    """Control-C ends the waiting at once, and nothing new is started."""
    release = threading.Event()
    began: list[str] = []

    def work(name: str) -> None:
        began.append(name)
        if name == "first":
            _thread.interrupt_main()
        release.wait(PATIENCE_S)

    with pytest.raises(KeyboardInterrupt):
        fan_out(["first", "second"], work, at_most=1, deadline_s=PATIENCE_S)
    release.set()
    assert began == ["first"]
