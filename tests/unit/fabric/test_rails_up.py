"""A node's rails: forked, relayed line by line, met before each round, replaced where they hang."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import children
import pytest
import start
from sweep import (
    clocks,
    cuda,
    main,
    plan,
    process_groups,
)

from tests.lazy_torch import torch
from tests.unit.fabric.ends import GO, Both
from tests.unit.fabric.nodes import wait_for


@pytest.mark.slow
def test_a_rail_that_does_not_come_is_named_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait as long as for a round, and say who was missing."""
    ends = Both(monkeypatch, barrier_s=0.3).measure_inside(0, 2)
    results = [(end["state"], end["error"]) for end in ends]
    assert results == [("absent", "rail 1 of this node did not come")] * 2


def test_long_lines_stay_whole_and_half_a_line_is_dropped() -> None:
    """A pipe takes 64 KiB at once; a killed writer leaves a line without its end."""
    reading, writing = os.pipe()

    def write() -> None:
        start.write(writing, {"long": "x" * 200_000})
        os.write(writing, b'{"half":')
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    reader = start.Reader(reading)
    assert reader.next(10.0) == {"long": "x" * 200_000}
    assert reader.next(10.0) is None
    writer.join()
    os.close(reading)


def test_a_late_line_is_a_timeout() -> None:
    """Silence is noticed after the time that the writer itself had announced."""
    reading, writing = os.pipe()
    with pytest.raises(TimeoutError):
        start.Reader(reading).next(0.01)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ((b"", b""), ["trouble", "trouble", "done"]),
        ((b"", b'{"event":"rail_done"}\n'), ["trouble", "done"]),
        ((b'{"event":"rail_done"}\n', b'{"event":"rail_done"}\n'), ["done"]),
        ((b'{"event":"rail_rest"}\n{"event":"rail_done"}\n',) * 2, ["rest", "done"]),
    ],
)
@pytest.mark.slow
def test_what_rails_say_becomes_what_their_node_says(
    sent: tuple[bytes, bytes], expected: list[str]
) -> None:
    """It rests when all that are not through do; a rank that dies without a word is a trouble."""
    events: list[dict[str, Any]] = []
    with ThreadPoolExecutor(1) as relay, ExitStack() as stack:
        pipes = [os.pipe() for _ in sent]
        for reading, _ in pipes:
            stack.callback(os.close, reading)
        relay.submit(main._relay, {at: pipe[0] for at, pipe in enumerate(pipes)}, events.append)
        rests = []
        for (_, writing), words in reversed([*zip(pipes, sent, strict=True)]):
            first, _, rest = words.partition(b"\n")
            os.write(writing, first + b"\n" * bool(first))
            rests.append((writing, rest))
        wait_for(lambda: [1] if "rest" in [one["event"] for one in events] else [], 0.3)
        for writing, rest in rests:
            os.write(writing, rest)
            os.close(writing)
        relay.shutdown()
    assert [one["event"] for one in events] == expected
    troubles = [one["error"] for one in events if one["event"] == "trouble"]
    assert all(error.startswith("its rank of rail ") for error in troubles)


def test_a_rail_that_rested_and_left_is_not_counted_twice() -> None:
    """The other still works: nothing is reported of the node until it ends, here by its death."""
    events: list[str] = []
    working, at_work = os.pipe()
    resting, writing = os.pipe()
    with ThreadPoolExecutor(1) as relay, ExitStack() as stack:
        stack.callback(os.close, working)
        stack.callback(os.close, resting)
        pipes = {0: working, 1: resting}
        ended = relay.submit(main._relay, pipes, lambda event: events.append(event["event"]))
        os.write(writing, b'{"event":"rail_rest"}\n{"event":"rail_done"}\n')
        os.close(writing)
        time.sleep(0.3)
        assert events == []
        os.close(at_work)
        ended.result(10)
    assert events == ["trouble", "done"]


@pytest.mark.slow
def test_who_misses_one_round_may_come_to_the_next_and_who_misses_two_is_struck() -> None:
    """Held up by a bad partner once: the others go on, and wait for it again in the next round."""
    store = torch.distributed.HashStore()
    late, other = process_groups.Rendezvous(store, 0, 2), process_groups.Rendezvous(store, 1, 2)
    with ThreadPoolExecutor(2) as both:
        first = [both.submit(one.arrive, 0, 10.0) for one in (late, other)]
    assert all(one.result() for one in first)
    assert other.arrive(1, 0.05)
    assert other.missed(1, 0)
    assert not late.arrive(1, 0.05)
    with ThreadPoolExecutor(2) as both:
        again = [both.submit(one.arrive, 2, 10.0) for one in (late, other)]
    assert all(one.result() for one in again)
    assert other.arrive(3, 0.05)
    assert late.struck(0)
    assert not late.arrive(4, 0.05)


@pytest.mark.slow
def test_no_rank_waits_for_a_member_that_is_known_to_be_lost() -> None:
    """Struck while others stand at the barrier, they go on, and so do all later rounds."""
    store = torch.distributed.HashStore()
    lost, *others = (process_groups.Rendezvous(store, number, 3) for number in range(3))
    with ThreadPoolExecutor(3) as all_three:
        first = [all_three.submit(one.arrive, 0, 10.0) for one in (lost, *others)]
        assert all(one.result() for one in first)
        waiting = all_three.submit(others[0].arrive, 1, 60.0)
        lost._count_in(1)
        process_groups.Rendezvous(store, -1, 3).strike(0, 3)
        assert not store.check(["begin/1"])
        assert others[1].arrive(1, 60.0)
        assert waiting.result()
    with ThreadPoolExecutor(2) as both:
        assert all(both.map(lambda one: one.arrive(2, 60.0), others))
    assert not any(store.check([f"striker/{number}"]) for number in range(3))
    assert not lost.arrive(2, 60.0)


@pytest.mark.slow
def test_no_rank_waits_for_a_rail_that_a_node_lacks() -> None:
    """Two nodes with two rails, one of which lacks its second: three members are all there are."""
    store = torch.distributed.HashStore()
    three = [process_groups.Rendezvous(store, number, 4, {3}) for number in range(3)]
    with ThreadPoolExecutor(3) as all_three:
        assert all(all_three.map(lambda one: one.arrive(0, 60.0), three))
        process_groups.Rendezvous(store, -1, 4, {3}).strike(3, 2)
        assert all(all_three.map(lambda one: one.arrive(1, 60.0), three))
    assert not store.check(["striker/0"])
    assert not three[0].missed(0, 3)


@pytest.mark.slow
def test_the_rails_that_are_there_meet_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rail 1 of three is not there: the other two all-reduce, and keep their numbers."""
    ends = Both(monkeypatch, missing=[1], barrier_s=60).measure_inside(0, 2)
    assert [(end["rail"], end["state"]) for end in ends] == [(0, "measured"), (2, "measured")]


@pytest.mark.slow
def test_a_starved_process_is_distinguished_from_one_that_hangs() -> None:
    """One only sleeps; the other shares a CPU with a loop and comes last; a third is stopped."""
    cpu = min(os.sched_getaffinity(0))
    loop = f"import os; os.sched_setaffinity(0, {{{cpu}}});"
    last = "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0));"
    spin = "\nwhile True: pass"
    with ExitStack() as stack:

        def start(code: str) -> int:
            process = subprocess.Popen([sys.executable, "-c", code])
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process.pid

        sleeping = start("import time; time.sleep(600)")
        start(loop + spin)
        starved = start(loop + last + spin)
        before = clocks.waited_s(starved)
        assert before
        wait_for(lambda: [1] if "for a CPU" in clocks.excuse(before, starved, 1.0) else [])
        assert re.search(r"it waited \d+\.\d s for a CPU", clocks.excuse(before, starved, 1.0))
        assert clocks.excuse(clocks.waited_s(sleeping), sleeping, 1.0) == ""
        os.kill(sleeping, signal.SIGSTOP)
        assert wait_for(lambda: [1] if clocks.is_stopped(sleeping) else [])
        assert clocks.excuse({}, sleeping, 1.0) == "; it was stopped by a signal"
    assert clocks.excuse({}, starved, 1.0) == ""


@pytest.mark.slow
def test_a_rail_that_hangs_in_its_fork_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first process sends nothing, as if it waited for a lock; the next works."""
    first = tmp_path / "first"

    def begin(_agent: int, _name: str) -> None:
        if not first.exists():
            first.write_text(str(os.getpid()))
            time.sleep(600)

    monkeypatch.setattr(children, "die_with_parent", begin)
    monkeypatch.setattr(children, "UP_S", 2.0)
    (events, telling), (ordered, ordering) = os.pipe(), os.pipe()
    none_of_its_own = plan.Rail(plan.read(GO), 1, "a", ("a", 1))
    main.start_rail(none_of_its_own, telling, ordered)
    assert start.Reader(events).next(30) == {"event": "rail_done"}
    assert not Path(f"/proc/{first.read_text()}").exists()  # nor as a zombie
    for each in (events, ordered, ordering):
        os.close(each)


def test_the_process_that_counts_the_gpus_leaves_no_zombie() -> None:
    """It answers and is killed; the agent lives on for the whole sweep."""
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    before = children.children_of(os.getpid())
    assert cuda._cuda(torch) == {"cuda": False, "gpus": 0}
    assert children.children_of(os.getpid()) == before


def test_a_node_on_which_no_rail_comes_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three silent processes are enough."""
    monkeypatch.setattr(children, "die_with_parent", lambda *_: os._exit(1))
    (events, telling), (ordered, ordering) = os.pipe(), os.pipe()
    with pytest.raises(OSError, match="none of 3 processes for rail 0 came up"):
        main.start_rail(plan.Rail(plan.read(GO), 0, "a", ("a", 1)), telling, ordered)
    for each in (events, telling, ordered, ordering):
        os.close(each)
