"""A host that stands still in an operation is seen to, and its cable is not blamed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.fabric.judge import judge_sweep
from preflight.fabric.launch import sweep as measure
from preflight.fabric.observed import digests
from preflight.fabric.samples import End, PairSamples, Resumed, Stall, Timing
from tests.unit.fabric.nodes import (
    DEADLINE_S,
    HAS_TORCH,
    Starter,
    fleet,
    measuring,
    plan,
    strike_all,
    wait_for,
)
from tests.unit.fabric.synthetic import hosts, sweep

from sweep.clocks import Stalls  # isort: skip  # the payload's, from the path conftest sets

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.fabric.observed import Standout
    from preflight.fabric.samples import Sweep

LONG_US, SHORT_US = 150_000.0, 100.0


def _end(node: str, long_at: int | None, *stalls: Stall, resumed: tuple[Resumed, ...] = ()) -> End:
    times = tuple(LONG_US if at == long_at else SHORT_US for at in range(50))
    timing = Timing(8, times, (0.0,) * 50, resumed=resumed)
    return End(node, "measured", (timing,), started_s=1000.0, stalls=stalls)


def _standouts(first: End, second: End) -> tuple[Standout, ...]:
    (digest,) = digests(PairSamples("h1", "h2", 0, 0, "gloo", first, second))
    return digest.standouts


def test_an_operation_knows_how_much_of_it_an_end_stood_still() -> None:
    """Overlapping standstills count once, those of other times and starved ones not at all."""
    stalls = (
        Stall(1000.001, 90.0, "stopped"),
        Stall(1000.061, 60.0, "host"),
        Stall(1000.130, 20.0, "starved"),
        Stall(1002.0, 500.0, "stopped"),
    )
    (one,) = _standouts(_end("h1", 10), _end("h2", 10, *stalls))
    assert one.first_stall_us == 0.0
    assert one.second_stall_us == pytest.approx(120_000, abs=1)


def test_a_partner_that_was_through_waits_in_its_next_operation() -> None:
    """h2 froze in operation 10, h1 noticed in operation 11: both are put down to h2."""
    standouts = _standouts(_end("h1", 11), _end("h2", 10, Stall(1000.001, 149.0, "stopped")))
    assert [one.operation for one in standouts] == [10, 11]
    assert all(one.second_stall_us > 148_000 > one.first_stall_us for one in standouts)


def test_time_that_is_in_no_operation_moves_what_follows() -> None:
    """Both ends agreed for 5 s before operation 10: the standstill is found all the same."""
    stall = Stall(1005.0, 149.0, "stopped")
    (one,) = _standouts(_end("h1", 10), _end("h2", 10, stall, resumed=(Resumed(10, 5.0),)))
    assert one.second_stall_us > 148_000


def _frozen(who: Callable[[PairSamples], tuple[str, ...]], what: str = "stopped") -> Sweep:
    """Five operations of 150 ms in each pair of h3; `who` stood still at those times."""

    def change(pair: PairSamples) -> PairSamples:
        times = [20.0] * 2000
        if "h3" in (pair.a, pair.b):
            times[100::400] = [LONG_US] * 5
        stalls = tuple(
            Stall(1e9 + (at * 20 + number * LONG_US) / 1e6, 145.0, what)  # type: ignore[arg-type]
            for number, at in enumerate(range(100, 2000, 400))
        )

        def end(one: End | None) -> End | None:
            if one is None:
                return None
            small = Timing(8, tuple(times), (0.0,) * 2000)
            still = stalls if one.node in who(pair) else ()
            return replace(one, timings=(small, *one.timings[1:]), started_s=1e9, stalls=still)

        return replace(pair, first=end(pair.first), second=end(pair.second))

    whole = sweep(hosts(5), lambda *_: 46.0, backend="nccl")
    return replace(whole, pairs=tuple(map(change, whole.pairs)))


@pytest.mark.parametrize(
    ("what", "words", "advice"),
    [
        ("stopped", "its measuring process was stopped 20 times, for up to 145 ms", "SIGSTOP"),
        ("host", "the host did not run 20 times, for up to 145 ms", "soft lockups"),
    ],
)
def test_a_host_that_stands_still_is_named_and_not_its_cable(
    what: str, words: str, advice: str
) -> None:
    """Long at both ends like a bad cable; one sentence says what froze, and where to look."""
    (blame,) = judge_sweep(_frozen(lambda _: ("h3",), what), hosts(5)).blames
    assert (blame.component, blame.events) == ("h3", 20)
    assert blame.sentence.startswith("h3 stood still in 20 of 8040 operations, for up to 150 ms")
    assert words in blame.sentence
    assert advice in blame.advice
    assert "cable" not in blame.advice


@pytest.mark.parametrize(
    "who", [lambda _: (), lambda pair: (pair.a, pair.b)], ids=["no end", "both ends"]
)
def test_what_one_host_alone_does_not_explain_is_the_wires(
    who: Callable[[PairSamples], tuple[str, ...]],
) -> None:
    """Both ends at once is a shared machine; and a starved supervisor proves nothing."""
    for measured in (_frozen(who), _frozen(lambda _: ("h3",), "starved")):
        (blame,) = judge_sweep(measured, hosts(5)).blames
        assert "operations through h3 took up to 150 ms" in blame.sentence
        assert "cable" in blame.advice


@pytest.mark.slow
def test_a_stopped_process_is_seen_by_its_supervisor() -> None:
    """How long it was stopped, also if it still is when the pair is over; and nothing twice."""
    silent, _ = os.pipe()
    waits = [sys.executable, "-c", "input()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE) as process, ExitStack() as undo:
        undo.callback(process.kill)  # stopped, it would never read that its input has ended
        stalls = Stalls(process.pid)
        for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGSTOP):
            began = time.monotonic()
            os.kill(process.pid, number)
            assert not stalls.wait(silent, 0.3)
            took_ms = (time.monotonic() - began) * 1000
        seen = [one for one in stalls.take() if one[2] == "stopped"]
        assert len(seen) == 2
        assert 20 < seen[-1][1] < took_ms + 1000
        process.kill()
        assert not stalls.wait(silent, 0.03)
        assert all(what != "stopped" or ms < 1000 for _, ms, what in stalls.take())


@pytest.mark.busy
@pytest.mark.skipif(not HAS_TORCH, reason="no torch in this Python")
@pytest.mark.usefixtures("nothing_left")
def test_a_process_that_is_stopped_while_it_measures_is_its_hosts_fault(
    meanwhile: Callable[[Callable[[], None]], None],
) -> None:
    """Stopped for 150 ms, again and again, in a real pair: its own account has it, no other's."""
    nodes = fleet(2)
    start, over = Starter({}), threading.Event()

    def stop_and_go() -> None:
        while not over.wait(0.2):
            pids = wait_for(lambda: measuring(start.talks.get("h2"), 2), 0.5)
            strike_all(pids, signal.SIGSTOP)
            time.sleep(0.15)
            strike_all(pids, signal.SIGCONT)

    meanwhile(stop_and_go)
    try:
        found = measure(
            plan(nodes, long_s=4.0), nodes, start, nonce="stalled", deadline_s=DEADLINE_S
        )
    finally:
        over.set()
    (pair,) = found.pairs
    assert pair.first is not None
    assert pair.second is not None
    assert not [one for one in pair.first.stalls if one.what == "stopped"]
    stopped = [one for one in pair.second.stalls if one.what == "stopped"]
    assert len(stopped) >= 3
    held_up = [one for digest in digests(pair) for one in digest.standouts if one.second_stall_us]
    assert len(held_up) >= 3
